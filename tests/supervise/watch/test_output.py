"""What the job's own output files tell."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.watch.log_steps import Counters
from slurm_robust.supervise.watch.output import OutputFile, read_exit, tasks


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: n3: task 2: Exited with exit code 1", [(2, 1, 0)]),
        ("srun: error: n3: tasks 0-1,4: Exited with exit code 13", [(0, 13, 0), (1, 13, 0), (4, 13, 0)]),
        ("srun: error: n3: task 7: Killed", [(7, None, 9)]),
        ("srun: error: n3: task 7: Segmentation fault (core dumped)", [(7, None, 11)]),
        ("srun: error: n3: task 7: Out Of Memory", [(7, None, 9)]),
        ("srun: error: n3: task 7: Trace/breakpoint trap", [(7, None, 5)]),
        ("srun: error: Unable to create step", []),
    ],
)
def test_exits_that_srun_tells_of(line: str, expected: list[tuple[int, int | None, int]]) -> None:
    """Codes and signals of single tasks."""
    assert [(e.task, e.code, e.signal) for e in read_exit(line)] == expected


@given(st.text(max_size=200))
def test_no_line_is_an_error(line: str) -> None:
    """Whatever a program prints."""
    Counters().progress(line)
    read_exit(line)
    assert isinstance(tasks(line), list)


def test_a_huge_range_is_bounded() -> None:
    """A garbled line cannot make us list a billion tasks."""
    assert len(tasks("0-99999999999")) <= 65536


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """Lines from before the attempt do not count; half a line waits for its end; a truncated file starts over."""
    path = tmp_path / "slurm-1.out"
    path.write_text("step 5\n")
    out = OutputFile(path)
    assert out.poll(1.0).step is None
    with path.open("a") as f:
        f.write("step 6\nste")
    assert out.poll(1.0).step == 6
    with path.open("a") as f:
        f.write("p 7\nsrun: error: n1: task 0: Killed\n")
    found = out.poll(1.0)
    assert found.step == 7
    assert [e.signal for e in found.exits] == [9]
    path.write_text("step 1\nstep 2\n")
    assert out.poll(1.0).step == 2


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    """No output file is no error."""
    assert OutputFile(tmp_path / "none").poll(1.0).step is None


def test_who_was_cancelled_is_told_by_step_and_a_lost_node_is_no_cancellation(tmp_path: Path) -> None:
    """A person, a time limit or a preemption ended it; a node failure did not."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    out = OutputFile(path)
    path.write_text(
        "slurmstepd: error: *** STEP 5.1 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
        "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
        "slurmstepd: error: *** STEP 5.2 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
    )
    assert out.poll(1.0).cancelled == ["5.1", "5"]


def test_cudas_own_words_are_no_oom_kill(tmp_path: Path) -> None:
    """`CUDA out of memory` is the program's error; the kernel's kill is another thing."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    out = OutputFile(path)
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB\n")
    assert out.poll(1.0).oom == []
    with path.open("a") as f:
        f.write("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks\n")
    assert len(out.poll(1.0).oom) == 1


OUR_LINES = (
    "srobust: 09:13:41 silence suspected: no progress for 9.4 s, limit 9.4 s (3 × p99 step 2.46 s + 2 s)",
    "srobust: 09:13:41 resumed from step 10 (verified checkpoint), first new step 11, 7.2 s after the fault",
    "srobust: the supervisor cannot be started: step 7; running without it",
    "srobust[4711]: step 8",
    "srobust run: step 9",
    "srobust srun: step 9",
    "slurm_robust.checkpoint: step 12 is not saved, training goes on: disk full",
    "slurm_robust.progress: phase 'step 3' is ignored",
    '{"at_s": 1795333621.2, "kind": "training", "text": "training at step 13, 2 ranks on n1"}',
)
SLURMS_LINES = (
    "srun: Job step 5.0 aborted before step completely launched.",
    "slurmstepd: error: container of step 14 is gone",
    "slurmstepd-n1: error: step 15",
)
IN_FRONT = (
    "",
    "3: ",
    " 12: ",
    "[default0]:",
    "[rank3]: ",
    "2026-01-01T09:13:41+00:00 ",
    "Nov 22 09:13:41 ",
    "\x1b[31m",
)


def grows(path: Path, text: str) -> None:
    """The file grows by this text."""
    with path.open("a", encoding="utf-8", newline="") as f:
        f.write(text)


@pytest.mark.parametrize("line", [*OUR_LINES, *SLURMS_LINES])
@pytest.mark.parametrize("front", IN_FRONT)
@pytest.mark.parametrize("pattern", ["", r"step[^0-9]*(?P<step>\d+)"])
def test_what_we_and_slurm_say_is_no_progress(tmp_path: Path, line: str, front: str, pattern: str) -> None:
    """The story stands in the file that is read for progress: behind labels, times, a carriage return, or a bar."""
    path = tmp_path / "slurm-1.out"
    path.touch()
    out = OutputFile(path, re.compile(pattern) if pattern else None)
    grows(path, "step 40 | 40/391 [00:10<05:00, 1.2it/s]\n")
    assert out.poll(1.0).step == 40
    for before in ("", "\r", "\rstep 40 | 40/391 [00:10<05:00, 1.2it/s]"):
        grows(path, f"{before}{front}{line}\n")
        assert out.poll(1.0).step is None, before
    grows(path, "\rstep 41 | 41/391 [00:11<05:00, 1.2it/s]")
    assert out.poll(1.0).step == 41, "what the program says next counts"


def test_our_own_lines_are_not_the_programs_last_words_and_no_exits(tmp_path: Path) -> None:
    """A story line may quote srun's word on another step; it is nobody's exit, and no word of the program."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    out = OutputFile(path)
    quoted = "srun: error: n1: task 0: Killed"
    grows(path, f"loss 2.3srobust: 09:13:41 the watch step ended (exit 1): {quoted}\n")
    grows(path, "srobust: 09:13:42 *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n")
    found = out.poll(1.0)
    assert (found.exits, found.cancelled, [line for _, line in out.lines]) == ([], [], ["loss 2.3"])
    grows(path, f"\r| 12/391 [00:10]{quoted}\n")
    assert [e.task for e in out.poll(1.0).exits] == [0], "Slurm's own word counts, also behind a bar"


def test_a_bar_is_read_when_it_is_drawn(tmp_path: Path) -> None:
    """Its line ends when the next one is drawn. Else the next line that anybody writes would seem to move it."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    out = OutputFile(path)
    grows(path, "\r  3%|▎   | 12/391 [00:10<05:00]")
    assert out.poll(1.0).step == 12
    grows(path, "\nsome warning\n")
    assert out.poll(1.0).step is None
    grows(path, "step 1")
    assert out.poll(1.0).step is None, "the number may go on"
    grows(path, "3 loss=2")
    assert out.poll(1.0).step == 13


def test_a_text_of_ours_with_several_lines_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else its second line would stand in the job's output without our mark."""
    IncidentFolder(tmp_path).log_event("note", "it failed:\n  step 12\n")
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.endswith("it failed:; step 12\n")


@given(st.text(max_size=60), st.sampled_from(OUR_LINES), st.sampled_from(IN_FRONT))
def test_no_line_of_ours_is_ever_news(before: str, line: str, front: str) -> None:
    """Whatever stands before it on the line says what it says without us."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        path.touch()
        out = OutputFile(path)
        grows(path, before + front)
        out.poll(1.0)
        grows(path, line + "\n")
        assert out.poll(1.0).step is None


def test_the_files_of_an_attempt_share_what_was_said(tmp_path: Path) -> None:
    """A copy of the output (`tee`) is behind by some lines, and nothing in it is news."""
    counters = Counters()
    first, copy = tmp_path / "slurm-1.out", tmp_path / "tee.out"
    for path in (first, copy):
        path.touch()
    files = [OutputFile(path, counters=counters) for path in (first, copy)]
    grows(first, "step 1\nstep 2\nstep 3\nstep 4\n")
    assert files[0].poll(1.0).step == 4
    grows(copy, "2026-01-01 09:00 step 2\n2026-01-01 09:00 step 3\n2026-01-01 09:00 step 4\n")
    assert files[1].poll(1.0).step is None
