"""Files of step timings: what is good is used, what is bad is a sentence with file and line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.localize.slow.timings_file import TimingsError, read_timings

GOOD = '{"rank": 0, "node": "n1", "step": 7, "total_s": 1.5, "compute_s": 1.0}\n'


def read(tmp_path: Path, text: str | bytes, name: str = "steps") -> object:
    """What a file with this content gives."""
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_timings(path)


def test_json_lines_csv_and_arrays_say_the_same(tmp_path: Path) -> None:
    """Three ways to write two ranks of two steps, gzipped or not."""
    lines = "".join(
        json.dumps({"rank": r, "node": f"n{r}", "step": s, "compute_s": r + s / 4}) + "\n"
        for r in (0, 1)
        for s in (3, 4)
    )
    table = "step,node,rank,compute_s\n" + "".join(f"{s},n{r},{r},{r + s / 4}\n" for s in (3, 4) for r in (0, 1))
    arrays = "".join(
        json.dumps({"rank": r, "node": f"n{r}", "steps": [3, 4], "compute_s": [r + 0.75, r + 1.0]}) + "\n"
        for r in (0, 1)
    )
    packed = gzip.compress(lines.encode())
    found = [read(tmp_path, text).timings for text in (lines, table, arrays, packed)]  # type: ignore[attr-defined]
    assert [list(row) for row in found[0].compute] == [[0.75, 1.75], [1.0, 2.0]]
    for other in found[1:]:
        assert other.compute == found[0].compute
        assert (other.ranks, other.steps, other.nodes) == ((0, 1), (3, 4), {0: "n0", 1: "n1"})


def test_compute_follows_from_total_and_communication(tmp_path: Path) -> None:
    """What is not communication is the rank's own work."""
    found = read(tmp_path, '{"rank": 0, "step": 1, "total_s": 1.5, "communication_s": 0.5}\n').timings  # type: ignore[attr-defined]
    assert found.compute[0][0] == 1.0


@pytest.mark.parametrize("head", ['{"layout": {"tp": 2, "dp": 4}}\n', '{"layout": "tp=2,dp=4"}\n'])
def test_a_layout_may_come_first(tmp_path: Path, head: str) -> None:
    """As sizes or as text; in CSV as a comment."""
    assert read(tmp_path, head + GOOD).timings.layout == {"tp": 2, "dp": 4}  # type: ignore[attr-defined]
    csv = "# layout: tp=2,dp=4\nrank,step,total_s\n0,1,2.5\n"
    assert read(tmp_path, csv).timings.layout == {"tp": 2, "dp": 4}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"rank": 1, "st', "line 2: cut off in its middle"),
        ("nonsense\n", "line 2: not JSON"),
        ("[1]\n", "line 2: no object with rank and step"),
        ('{"rank": -1, "step": 1, "total_s": 1}\n', "line 2: rank is missing, or no whole number"),
        ('{"rank": 1, "step": "x", "total_s": 1}\n', "line 2: step is missing"),
        ('{"rank": 1, "step": 1, "total_s": -1}\n', "line 2: none of total_s"),
        ('{"rank": 1, "step": 1, "total_s": NaN}\n', "line 2: none of total_s"),
        ('{"rank": 1, "steps": [1, 2], "total_s": [1]}\n', "line 2: total_s has not as many values"),
        (GOOD, "line 2: rank 0 reports step 7 a second time"),
        (GOOD.replace("7", "6"), "line 2: rank 0 goes back to step 6"),
        (GOOD.replace("n1", "n2").replace("7", "8"), "line 2: rank 0 is on another node than before, n2"),
        ('{"layout": {"tp": "two"}}\n', "line 2: layout"),
    ],
)
def test_a_bad_line_is_a_sentence(tmp_path: Path, bad: str, told: str) -> None:
    """It names file and line; the good line is used."""
    found = read(tmp_path, GOOD + bad)
    assert told in found.problems[0]  # type: ignore[attr-defined]
    assert found.problems[0].startswith(str(tmp_path / "steps"))  # type: ignore[attr-defined]
    assert found.timings.ranks == (0,)  # type: ignore[attr-defined]


def test_many_of_a_kind_are_counted(tmp_path: Path) -> None:
    """A hundred bad lines make one sentence."""
    (problem,) = read(tmp_path, GOOD + "bad\n" * 100 + GOOD.replace("7", "8")).problems  # type: ignore[attr-defined]
    assert problem.endswith("(and 99 more like it)")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("bad\n", "no column 'rank'"),
        ("rank,step,seconds\n1,2,3\n", "none of the columns total_s"),
        ("rank,step,total_s\n", "no timing in it"),
        ("{}\n", "no timing in it"),
        (gzip.compress(b"x" * 100, mtime=0)[:16], "cannot be unpacked"),
    ],
)
def test_nothing_usable_is_an_error(tmp_path: Path, content: str | bytes, told: str) -> None:
    """The message names the file and the reason."""
    with pytest.raises(TimingsError, match=told):
        read(tmp_path, content)


def test_csv_problems(tmp_path: Path) -> None:
    """A row without a number, one that was cut off."""
    found = read(tmp_path, "rank,step,total_s\n0,1,1.5\n0,x,1\n1,1")
    assert "line 3: step is missing" in found.problems[0]  # type: ignore[attr-defined]
    assert "line 4: cut off" in found.problems[1]  # type: ignore[attr-defined]


def test_no_such_file(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(TimingsError, match=r"nothing.csv: cannot be read: No such file"):
        read_timings(tmp_path / "nothing.csv")


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda t: ("rank,step,total_s\n" + t).encode()))
def test_any_bytes_are_timings_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Nothing else is ever raised, and what is read is a table of durations or gaps."""
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        timings = read_timings(path).timings
    except TimingsError:
        return
    assert all(len(row) == len(timings.ranks) for row in timings.total)
    assert all(math.isnan(v) or v >= 0 for row in timings.total for v in row)
