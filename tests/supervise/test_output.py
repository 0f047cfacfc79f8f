"""What the job's own output files tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.supervise.output import OutputFile, read_exit, read_step, tasks


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (" iteration    42780/  115311 | consumed samples: 87613440 | elapsed time per iteration (ms): 9", 42780),
        ("Epoch 3:  17%|█▋        | 120/703 [00:31<02:33,  3.79it/s, v_num=1]", 120),
        ("{'loss': 2.31, 'global_step': 500, 'epoch': 0.4}", 500),
        ("[2026-01-01 00:00:00] [Rank 0] step=1000, skipped=0, lr=[0.0003]", 1000),
        ("[titan] 2026-01-01 - root - INFO - step: 90  loss:  3.1  memory: 40GiB", 90),
        ("step 30/200 loss=2.31", 30),
        ("Training epoch 0, iteration 12/99", 12),
        ("loading step files from disk", None),
        ("footstep 12", None),
        ("", None),
    ],
)
def test_progress_lines_of_the_usual_programs(line: str, step: int | None) -> None:
    """Megatron, Lightning, Hugging Face, DeepSpeed, torchtitan, own loops."""
    assert read_step(line) == step


def test_a_sites_own_pattern_replaces_ours() -> None:
    """With `log_pattern`, nothing else counts."""
    own = re.compile(r"tick (?P<step>\d+)")
    assert read_step("tick 5", own) == 5
    assert read_step("step 9", own) is None


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
    read_step(line)
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
    assert out.poll().step is None
    with path.open("a") as f:
        f.write("step 6\nste")
    assert out.poll().step == 6
    with path.open("a") as f:
        f.write("p 7\nsrun: error: n1: task 0: Killed\n")
    found = out.poll()
    assert found.step == 7
    assert [e.signal for e in found.exits] == [9]
    path.write_text("step 1\n")
    assert out.poll().step == 1


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    """No output file is no error."""
    assert OutputFile(tmp_path / "none").poll().step is None


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
    assert out.poll().cancelled == ["5.1", "5"]


def test_cudas_own_words_are_no_oom_kill(tmp_path: Path) -> None:
    """`CUDA out of memory` is the program's error; the kernel's kill is another thing."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    out = OutputFile(path)
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB\n")
    assert out.poll().oom == []
    with path.open("a") as f:
        f.write("slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks\n")
    assert len(out.poll().oom) == 1
