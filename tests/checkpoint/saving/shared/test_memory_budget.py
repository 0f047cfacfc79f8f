"""Memory is asked for before it is taken: what does not fit is refused in a sentence, and never kills anybody later."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds_server import in_worlds

from slurm_robust.checkpoint.saving.shared import memory_budget
from slurm_robust.checkpoint.saving.shared.memory_budget import MemoryLimit

GIB = 1 << 30


@given(
    needed=st.integers(0, 1 << 42),
    rooms=st.lists(st.tuples(st.integers(-GIB, 1 << 42), st.integers(0, 1 << 42)), max_size=4),
)
def test_what_is_admitted_leaves_the_spare(needed: int, rooms: list[tuple[int, int]]) -> None:
    """Under every limit, the spare is still there afterwards; what is refused would have taken of it."""
    told = [MemoryLimit(left, limit, "the node") for left, limit in rooms]
    fits = all(left - needed >= memory_budget.spare_bytes(limit) for left, limit in rooms)
    assert (memory_budget.refusal(needed, told, "rank 0") == "") == fits


def test_the_sentence_says_whose_how_much_and_where() -> None:
    """Somebody has to know what to change."""
    why = memory_budget.refusal(
        6 * GIB, [MemoryLimit(40 * GIB, 64 * GIB, "the node"), MemoryLimit(4 * GIB, 8 * GIB, "/sys/x")], "rank 3"
    )
    assert why.startswith("rank 3: the two checkpoint buffers take 6.00 GiB, and /sys/x has 3.76 GiB left")
    assert "limit 8.00 GiB" in why


def write(path: Path, text: str) -> None:
    """A file of /proc or /sys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_read_from_every_group_above(tmp_path: Path, version: int) -> None:
    """A step's group has no limit of its own, its job's has; cached files count as free."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n")
    if version == 2:
        write(proc / "self" / "cgroup", "0::/job_1/step_0\n")
        job, names, cached = groups / "job_1", ("memory.max", "memory.current"), "inactive_file"
        write(job / "step_0" / "memory.max", "max\n")
        write(job / "step_0" / "memory.current", "5\n")
    else:
        write(proc / "self" / "cgroup", "3:cpu:/other\n2:memory:/job_1/step_0\n")
        job, names = groups / "memory" / "job_1", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cached = "total_inactive_file"
        write(job / "step_0" / names[0], f"{(1 << 63) - 4096}\n")
        write(job / "step_0" / names[1], "5\n")
    write(job / names[0], f"{3 * GIB}\n")
    write(job / names[1], f"{2 * GIB}\n")
    write(job / "memory.stat", f"anon 1\n{cached} {GIB // 2}\nfile 9\n")
    assert memory_budget.limits(proc, groups) == [
        MemoryLimit(4 * GIB, 8 * GIB, "the node"),
        MemoryLimit(GIB + GIB // 2, 3 * GIB, str(job)),
    ]


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    """No /proc, no limits: then the system itself says no."""
    assert memory_budget.limits(tmp_path, tmp_path) == []
    assert memory_budget.refusal(1 << 60, [], "rank 0") == ""


def test_this_machine_has_limits() -> None:
    """The real files are understood."""
    assert any(room.set_by == "the node" and 0 < room.left_bytes <= room.limit_bytes for room in memory_budget.limits())


def test_too_large_a_state_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """Before anything is taken; without buffers the same state is saved."""
    ((first, second),) = in_worlds(f"""
from slurm_robust.checkpoint import CheckpointError
def large(rank, directory):
    training = Training("ddp")
    # An expanded tensor: a state of 300 TB that costs nothing until somebody copies it.
    training.state["large"] = {{"x": torch.zeros(1).expand(1 << 23, 1 << 23)}}
    try:
        Checkpointer(directory).prepare(training.state)
    except CheckpointError as error:
        return str(error)
told(run(2, large, {str(tmp_path)!r}))
""")
    assert first == second
    assert "the two checkpoint buffers take" in first
    assert "Checkpointer(asynchronous=False)" in first


def test_two_buffers_and_no_more(tmp_path: Path) -> None:
    """Trainer and persister together take two states on top of the training's own, while saves follow each other."""
    (((own, most),),) = [
        [tuple(rank) for rank in world]
        for world in in_worlds(f"""
import re, threading
def pss_kib():
    me, found = str(os.getpid()), 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name == me or (entry.name.isdigit() and "srobust-ckpt" in (entry / "comm").read_text()
                                    and {str(tmp_path.name)!r} in (entry / "environ").read_text()):
                told = (entry / "smaps_rollup").read_text()
                found += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem):\\s+(\\d+)", told, re.MULTILINE)))
        except OSError:
            continue
    return found
def measured(rank, directory):
    os.environ["TEST_MARK"] = {str(tmp_path.name)!r}
    state = {{"tensors": {{str(n): torch.randn(4 << 20) for n in range(4)}}}}
    before, most, done = pss_kib(), 0, threading.Event()
    def watch():
        nonlocal most
        while not done.wait(0.01):
            # Twice: a process that maps the buffers between two looks at two processes has its pages counted twice.
            most = max(most, min(pss_kib(), pss_kib()))
    watcher = threading.Thread(target=watch)
    watcher.start()
    with Checkpointer(directory, keep=1) as saver:
        for number in range(1, 9):
            assert saver.save(number, state)
    done.set()
    watcher.join()
    return [64 << 10, most - before]
told(run(1, measured, {str(tmp_path)!r}))
""")
    ]
    assert most > 2 * own * 0.95, "measured too late, or in the wrong processes"
    assert most < 2 * own + (48 << 10)
