"""What sacct prints becomes runs, whatever job owners wrote into it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_robust.config.site import SlurmConfig
from slurm_robust.slurm import accounting, values
from slurm_robust.slurm.client import PastRun
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmError, SlurmParseError, SlurmTimeoutError, SlurmUnavailableError

DIVIDER = "qXhTrWbzPmLkVnCd"
RUN = PastRun(7, "7", "c", "ann", "lab", "train", "main", "n[1-2]", 2, 16, 10, 11, 12, 13, "REQUEUED", "0:0")


def printed(run: PastRun) -> str:
    """The run as sacct prints it."""
    times = [str(at_s) if at_s else "Unknown" for at_s in run[10:14]]
    tres = f"billing=2,cpu=2,gres/gpu={run.gpus},node=2"
    fields = (run.job_id, run.job, *run[2:8], run.node_count, tres, tres, *times, run.state, run.exit_code)
    return DIVIDER.join(map(str, fields)) + "\n"


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30).filter(lambda text: DIVIDER not in text)
TIMES = st.none() | st.integers(1, 4_000_000_000)
RUNS = st.builds(
    PastRun,
    job_id=st.integers(1, 2**31),
    job=st.from_regex(r"[1-9][0-9]{0,8}(_[0-9]{1,6}|_\[[0-9]{1,5}-[0-9]{1,5}(%[0-9]{1,3})?\])?", fullmatch=True),
    cluster=TEXTS,
    user=TEXTS,
    account=TEXTS,
    name=TEXTS | st.just("a|b\n99|ROOT|x") | st.just("x" * 4096) | st.just("bad\ufffdname"),
    partition=TEXTS,
    nodes=st.sampled_from(["", "n1", "n[1-3]", "gpu[001-128],login"]),
    node_count=st.integers(0, 20000),
    gpus=st.integers(0, 10**6),
    submitted_at_s=TIMES,
    eligible_at_s=TIMES,
    started_at_s=TIMES,
    ended_at_s=TIMES,
    state=st.sampled_from(["COMPLETED", "NODE_FAIL", "OUT_OF_MEMORY", "RUNNING"]),
    exit_code=st.sampled_from(["0:0", "1:0", "0:9"]),
)


@given(st.lists(RUNS, max_size=6))
def test_what_is_printed_is_read(runs: list[PastRun]) -> None:
    """No name, however hostile, forges a field or a run."""
    text = "".join(map(printed, runs))
    assert list(accounting.parse_past_runs(text, DIVIDER)) == runs


@given(st.lists(RUNS, min_size=1, max_size=3), st.data())
def test_an_answer_that_is_cut_is_an_error_or_whole_runs(runs: list[PastRun], data: st.DataObject) -> None:
    """A sacct that was killed gives no half run: another text, a parse error, or the first of the runs."""
    text = "".join(map(printed, runs))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with contextlib.suppress(SlurmParseError):
        read = list(accounting.parse_past_runs(cut, DIVIDER))
        assert [run._replace(exit_code="") for run in read] == [run._replace(exit_code="") for run in runs[: len(read)]]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a SlurmParseError comes out of text that is not sacct's."""
    with contextlib.suppress(SlurmParseError):
        list(accounting.parse_past_runs(text.replace("|", DIVIDER), DIVIDER))


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=1,cpu=1,gres/gpu=8,node=1", 8),
        ("cpu=1,gres/gpu:h100=8,gres/gpu:a100=4", 12),
        ("gres/gpu=12,gres/gpu:h100=8,gres/gpu:a100=4", 12),
        ("cpu=1,gres/gpumem=80", 0),
        ("cpu=1", 0),
        ("", 0),
    ],
)
def test_gpus_of_all_nodes(tres: str, gpus: int) -> None:
    """Their sum is counted once; where only types are tracked, these are added."""
    assert accounting.gpus(tres) == gpus


def test_a_job_that_never_ran_has_no_nodes() -> None:
    """And its GPUs are those that it asked for; who cancelled it is not part of the state."""
    fields = ["12", "12_[3-9%2]", "c", "ann", "lab", "x", "main", "None assigned", "2", "", "gres/gpu=16"]
    fields += ["10", "11", "None", "12", "CANCELLED by 1000", "0:0"]
    (run,) = accounting.parse_past_runs(DIVIDER.join(fields) + "\n", DIVIDER)
    assert (run.job, run.nodes, run.gpus, run.started_at_s, run.state) == ("12_[3-9%2]", "", 16, None, "CANCELLED")


PARTS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 30), st.integers(1, 4)), min_size=1, max_size=5)


@given(PARTS)
@example([(0, 0, 2), (1, 0, 1)])
@example([(8, 1, 2), (9, 0, 1)])
@example([(0, 12, 1)])
def test_lists_of_nodes_are_unfolded_as_before(parts: list[tuple[int, int, int]]) -> None:
    """The quick way gives what ClusterShell gives, or leaves it to it."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415 (slow to load)

    text = ",".join(f"{low:0{wide}}-{low + more:0{wide}}" for low, more, wide in parts)
    try:
        expected = tuple(map(str, NodeSet(f"gpu-a[{text}]", resolver=RESOLVER_NOGROUP)))
    except NodeSetException:
        with pytest.raises(SlurmParseError):
            values.expand(f"gpu-a[{text}]", remember=False)
    else:
        assert values.expand(f"gpu-a[{text}]", remember=False) == expected


def client(folder: Path, script: str) -> CommandClient:
    """A client whose sacct is this shell script."""
    (folder / "sacct").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sacct").chmod(0o755)
    return CommandClient(SlurmConfig(bin_dir=str(folder), conf="/some/slurm.conf", timeout_s=5.0))


def test_an_accounting_that_is_away_or_slow_is_a_typed_error(tmp_path: Path) -> None:
    """Slurm's own message; a sacct that hangs is ended at the deadline."""
    away = 'echo "sacct: error: Problem talking to the database: Connection refused" >&2; exit 1'
    with pytest.raises(SlurmUnavailableError, match="talking to the database"):
        client(tmp_path, away).past_runs(0, 10, timeout_s=5)
    with pytest.raises(SlurmError, match="storage is disabled"):
        client(tmp_path, 'echo "Slurm accounting storage is disabled" >&2; exit 1').past_runs(0, 10, timeout_s=5)
    with pytest.raises(SlurmTimeoutError):
        client(tmp_path, "sleep 60").past_runs(0, 10, timeout_s=0.2)


def test_times_are_asked_for_in_utc(tmp_path: Path) -> None:
    """Whatever the zone of this machine."""
    asks = f'echo "$TZ $SLURM_TIME_FORMAT $*" >{tmp_path}/asked'
    assert client(tmp_path, asks).past_runs(1_700_000_000, 1_700_086_400, timeout_s=5) == []
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("UTC0 %s ")
    assert "-S 2023-11-14T22:13:20 -E 2023-11-15T22:13:20" in asked
