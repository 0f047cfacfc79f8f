"""The shapes of progress lines: each one's examples, with what Slurm, launchers and loggers put before them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.watch.log_shapes import Counts, Shape, known_shapes, load_shapes
from slurm_robust.supervise.watch.log_steps import Counters

SHAPES: list[Shape] = list(known_shapes())
EXAMPLES = [(shape, step, line) for shape in SHAPES for step, line in shape.examples]
IN_FRONT = (
    "",
    "   ",
    "3: ",
    " 12: ",
    "[default0]:",
    "[rank3]: ",
    "7: [rank7]:",
    "node-012: ",
    "gpu01: ",
    "(main_task pid=1234) ",
    "(WorkerDict pid=1234, ip=10.0.0.12) ",
    "2026-01-01T09:13:41+00:00 ",
    "2026-01-01 09:13:41,123 - INFO - ",
    "Nov 22 09:13:41 ",
    "INFO:root:",
    "[2026-01-01 09:13:41,123] [INFO] [logging.py:96:log_dist] ",
    "I0101 10:00:00.000000 140012 train.py:48] ",
    "\x1b[31m",
    "\x1b[32m[0101 10:00:00 @train.py:12]\x1b[0m ",
)


@pytest.mark.parametrize(("shape", "step", "line"), EXAMPLES, ids=[f"{s.name}-{n}" for s, n, _ in EXAMPLES])
def test_every_example_is_read_by_its_own_shape(shape: Shape, step: int | None, line: str) -> None:
    """Also behind labels, times and colours. No shape above it takes the line away."""
    for front in IN_FRONT:
        counters = Counters()
        counters.progress(front + line)
        assert counters.training.step == (-1 if step is None else step), front
        assert step is None or counters.main.partition("/")[0] == shape.name, front


@pytest.mark.parametrize(("shape", "step", "line"), EXAMPLES, ids=[f"{s.name}-{n}" for s, n, _ in EXAMPLES])
def test_a_line_that_is_printed_again_is_no_progress(shape: Shape, step: int | None, line: str) -> None:
    """Whatever its shape, with a time before it that goes on."""
    counters = Counters()
    counters.progress(line)
    assert [counters.progress(f"2026-01-01 09:13:{second:02} {line}") for second in range(20)] == [None] * 20


def test_every_shape_is_complete() -> None:
    """A name of its own, its source, two lines that it reads, and a pattern in lower case that has a step."""
    assert [name for name, times in Counter(s.name for s in SHAPES).items() if times > 1] == []
    for shape in SHAPES:
        assert shape.source, shape.name
        assert all(shape.words), shape.name
        assert len([step for step, _ in shape.examples if step is not None or shape.counts is Counts.OTHER]) >= 2
        assert "step" in shape.compiled.groupindex, shape.name
        assert shape.first_epoch is None or shape.counts is Counts.UNKNOWN, f"{shape.name}: one of them has no effect"
        # The line is searched in lower case.
        assert not re.search(r"(?<!\\)[A-Z]", shape.pattern.replace("?P<", "")), shape.name


@pytest.mark.parametrize(("shape", "step", "line"), EXAMPLES, ids=[f"{s.name}-{n}" for s, n, _ in EXAMPLES])
def test_an_example_contains_the_word_of_its_shape(shape: Shape, step: int | None, line: str) -> None:
    """Else it would never be searched."""
    assert step is None or all(word in line.lower() for word in shape.words)


@pytest.mark.parametrize(("shape", "step", "line"), EXAMPLES, ids=[f"{s.name}-{n}" for s, n, _ in EXAMPLES])
def test_a_line_that_is_written_in_pieces_shows_no_wrong_step(shape: Shape, step: int | None, line: str) -> None:
    """However much of it is there at a poll: no step, or the step of the whole line."""
    whole = Counters()
    whole.progress(line)
    for end in range(len(line)):
        counters = Counters()
        if counters.progress(line[:end], whole=False) is not None:
            counters.progress(line)
            assert counters.training.step == whole.training.step, line[:end]


@given(st.text(max_size=200), st.sampled_from(EXAMPLES))
def test_no_line_is_an_error(text: str, example: tuple[Shape, int | None, str]) -> None:
    """Whatever stands before or after a line that is known."""
    Counters().progress(text + example[2])
    Counters().progress(example[2] + text)
    Counters().progress(example[2][: len(text)] + text)


@pytest.mark.parametrize("number", [10**9, 10**17, 10**30])
def test_a_number_that_nobody_counts_to_is_none(number: int) -> None:
    """It is no error either."""
    assert Counters().progress(f"step {number}") == (number if number < 10**18 else None)


def test_patterns_do_not_explode() -> None:
    """A hostile line of the longest kind is read within a moment."""
    program = (
        "from slurm_robust.supervise.watch.log_steps import Counters\n"
        "pieces = ('epoch ', 'epoch [1/', 'train: 1 ', '| ', '1/2 ', 'val', 'step ', '━ ', '1,000,', '[1', 'batch ')\n"
        "for piece in (*pieces, 'loading ', '12%|', 'loss 1.0 ', '1 2 3 '):\n"
        "    for line in (piece * 1000, piece + ' ' * 1990, piece + '1' * 1990, piece * 50 + '|' * 1000):\n"
        "        for _ in range(20):\n"
        "            Counters().progress(line[:2000])\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_patterns_wait_for_their_word() -> None:
    """The supervisor's start does not pay for patterns of programs that the job does not run."""
    program = (
        "import re\n"
        "from slurm_robust.supervise.watch.log_steps import Counters\n"
        "from slurm_robust.supervise.watch.log_shapes import known_shapes\n"
        "Counters().progress('hello')\n"
        "assert not [s.name for s in known_shapes() if 'compiled' in s.__dict__]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


GOOD = "- {name: good, source: x, words: [tick], pattern: 'tick <step>', examples: '1 = tick 1'}\n"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (f"shapes:\n{GOOD}", 7),
        (f"shapes:\n- {{name: bad}}\n- 5\n{GOOD}", 7),
        (f"shapes:\n- {{name: bad, source: x, words: [tick], pattern: '(', examples: '1 = x'}}\n{GOOD}", 7),
        (f"shapes:\n- {{name: bad, source: x, words: [tick], pattern: x, counts: y, examples: '1 = x'}}\n{GOOD}", 7),
        ("shapes: [", None),
        ("", None),
        ("shapes: 5", None),
    ],
)
def test_a_wrong_shape_ends_no_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, step: int | None
) -> None:
    """It is left out, and named in a line of ours."""
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    reading = load_shapes(path).read("tick 7")
    assert (reading.number if reading is not None else None) == step
    said = capsys.readouterr().err
    assert all(line.startswith("srobust: ") for line in said.splitlines())
    assert bool(said) is (text != f"shapes:\n{GOOD}")


def test_without_the_file_no_line_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job is judged by its stacks then."""
    assert load_shapes(tmp_path / "none").read("step 7") is None
    assert "cannot be read" in capsys.readouterr().err
