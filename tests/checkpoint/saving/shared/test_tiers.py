"""Memory, the node's disk, the shared file system: each at its interval, and a restart takes the newest of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saving_nodes import RANKS, Nodes
from worlds_server import in_worlds

from slurm_robust import checkpoint
from slurm_robust.checkpoint import TierOptions
from slurm_robust.checkpoint.saving.shared.tiers import TierSchedule
from slurm_robust.supervise.agent import persisters

TIERED = """
import signal, time
def steps(rank, directory, layout, count, options, end="kill"):
    training = Training(layout)
    saver = Checkpointer(directory, **options)
    saver.prepare(training.state)
    saved, digests = [], []
    for number in range(1, count + 1):
        training.step(number)
        digests.append(training.digest())
        if saver.save(number, training.state):
            saved.append(number)
        saver.wait()
    dist.barrier()
    if end == "kill":
        Path(f"{os.environ['TOLD']}.{rank}").write_text(json.dumps([saved, digests]))
        os.kill(os.getpid(), signal.SIGKILL)
    saver.close()
    return [saved, digests]
"""


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 50), st.integers(1, 7))
def test_each_tier_gets_a_save_in_each_interval(memory: int, local: int, shared: int, begin: int, pace: int) -> None:
    """Whatever steps are offered: no interval without one, no more than one in each; memory has all of them."""
    every = {"memory": memory, "local": local, "shared": shared}
    schedule = TierSchedule(every, local=True)
    schedule.saved(begin, schedule.all)
    saved: dict[str, list[int]] = {tier: [] for tier in every}
    offered = range(begin + pace, begin + 60 + pace, pace)
    for step in offered:
        tiers = schedule.due(step)
        assert not tiers or tiers[0] == "memory"
        schedule.saved(step, tiers)
        for tier in tiers:
            saved[tier].append(step)
    for tier in ("local", "shared"):
        intervals = [step // every[tier] for step in saved[tier]]
        if every[tier] > 1:
            assert len(set(intervals)) == len(intervals)
        assert set(intervals) == {step // every[tier] for step in offered} - {begin // every[tier]} or every[tier] == 1
    assert set(saved["local"]) | set(saved["shared"]) <= set(saved["memory"])


def test_what_is_no_schedule_is_refused() -> None:
    """Names, numbers, and a tier that has no folder."""
    with pytest.raises(ValueError, match="every has disk: there are memory, local, shared"):
        TierSchedule({"disk": 1}, local=True)
    with pytest.raises(ValueError, match="1 step or more"):
        TierSchedule({"shared": 0}, local=True)
    with pytest.raises(ValueError, match="no local folder"):
        TierSchedule({"local": 1}, local=False)


def test_a_restart_takes_the_newest_of_all_tiers(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has 7; without it the nodes' disks have 6; without one of those the shared one has 4. Bit for bit."""
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    nodes.up("a", "b")
    options = {"tiers": TierOptions(local=f"{tmp_path}/local", every={"local": 2, "shared": 4})}
    ckpt = f"{tmp_path}/ckpt"
    go_on = f'told(run(2, on_nodes, "a b", resumed, {ckpt!r}, "fsdp", {options!r}))\n'
    train = f'run(2, on_nodes, "a b", steps, {ckpt!r}, "fsdp", 7, {options!r}, expect=-9)\n'
    (memory,) = in_worlds(RANKS + TIERED + (train + go_on).replace(ckpt, f"{tmp_path}/other"))
    in_worlds(RANKS + TIERED + train)
    nodes.lose("a", "b")
    nodes.up("a", "b")
    (disk,) = in_worlds(RANKS + go_on)
    shutil.rmtree(tmp_path / "local")
    nodes.lose("a", "b")
    nodes.up("a", "b")
    (shared,) = in_worlds(RANKS + go_on)
    saved, digests = json.loads((tmp_path / "told.0").read_text())
    assert saved == [1, 2, 3, 4, 5, 6, 7]
    for loaded, step, source in ((memory, 7, "memory"), (disk, 6, "local"), (shared, 4, "files")):
        assert {(rank["step"], rank["source"]) for rank in loaded} == {(step, source)}
        assert {rank["digest"] for rank in loaded} == {digests[step - 1]}
    assert any("rank 0 from the disk of a; rank 1 from the disk of b" in note for note in disk[0]["notes"])


WRITES = """
from slurm_robust.checkpoint.saving.shared import file_writer as writing
before = writing.write_file
def write_file(folder, name, *args):
    with open(writes, "a") as file:
        file.write(name + " ")
    return before(folder, name, *args)
writing.write_file = write_file
"""


def test_memory_is_flushed_before_the_agents_end(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was for memory only is on the shared file system when an agent has ended in order: a requeue ends memory.

    Also the share of a node that is lost: from its backup, by one of the two nodes that have one.
    """
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    hook = f"writes = {str(tmp_path / 'writes')!r}{WRITES}"
    monkeypatch.setattr(persisters, "_BOOTSTRAP", persisters._BOOTSTRAP.replace("; from", f"; exec({hook!r}); from"))
    nodes.up("a", "b", "c")
    ckpt = tmp_path / "ckpt"
    tiers = {"tiers": TierOptions(every={"shared": 100})}
    train = f'run(3, on_nodes, "a b c", steps, {str(ckpt)!r}, "fsdp", 3, {tiers!r}, expect=-9)\n'
    in_worlds(RANKS + TIERED + train)
    assert checkpoint.latest(ckpt).path is None
    nodes.lose("b")
    nodes.end_in_order()
    assert checkpoint.latest(ckpt, deep=True).step == 3
    written = (tmp_path / "writes").read_text().split()
    assert written.count("__1_0.distcp") == len({path.name for path in ckpt.glob("step-*")}), written


def test_a_local_disk_that_is_full_costs_that_tier_alone(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and the shared file system has all."""
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    (tmp_path / "local").write_text("not a folder")
    nodes.up("a")
    options = {"tiers": TierOptions(local=f"{tmp_path}/local")}
    train = f'told(run(1, on_nodes, "a", steps, "{tmp_path}/ckpt", "plain", 2, {options!r}, "close"))\n'
    ((told,),) = in_worlds(RANKS + TIERED.replace("    dist.barrier()\n", "") + train)
    assert told[0] == [1, 2]
    assert checkpoint.latest(tmp_path / "ckpt", deep=True).step == 2


LEAVING = """
import signal, time
def leave(rank, directory, options, overlap):
    training = Training("fsdp")
    before = []
    signal.signal(signal.SIGUSR1, lambda *_: before.append(1))
    saver = Checkpointer(directory, copying=CopyOptions(overlap=overlap), **options)
    saver.save_on(signal.SIGTERM, signal.SIGUSR1)
    saved, digest = [], ""
    for number in range(1, 50):
        training.step(number)
        if number == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if saver.save(number, training.state):
            saved.append(number)
        if saver.stopping:
            digest = training.digest()
            break
    return [saved, saver.last_sealed, digest, before]
"""


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_signal_makes_the_next_save_the_last(tmp_path: Path, asynchronous: bool) -> None:
    """One rank has it, all save the same step, sealed before they leave; a handler from before is called, too."""
    options = {"tiers": TierOptions(every={"memory": 100, "shared": 100}), "asynchronous": asynchronous}
    left, loaded = in_worlds(
        LEAVING
        + f"""
told(run(2, leave, "{tmp_path}/ckpt", {options!r}, "skip"))
told(run(2, load, "{tmp_path}/ckpt", "fsdp"))
"""
    )
    assert [rank[:2] for rank in left] == [[[5], 5]] * 2
    assert [rank[3] for rank in left] == [[], [1]]
    assert {rank["digest"] for rank in loaded} == {left[0][2]}
    assert {rank["step"] for rank in loaded} == {5}
