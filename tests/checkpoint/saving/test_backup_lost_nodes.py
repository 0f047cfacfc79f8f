"""Each rank's copies are kept on other nodes, too: what was backed up comes back whichever nodes are lost."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path

import pytest
from saving_nodes import NO_DISK, RANKS, Nodes, go_on, load, train
from worlds_server import in_worlds

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving.backup.placement import PlacementGrid, place
from slurm_robust.supervise.agent import persisters


def test_any_one_node_is_lost(nodes: Nodes) -> None:
    """Three nodes, one backup; each replacement of a lost one has an empty memory, and all ranks go on bit for bit.

    One after the other is lost: what was replaced has its copies and its backups anew by then.
    """
    names = ["a", "b", "c"]
    nodes.up(*names)
    (before,) = in_worlds(RANKS + train("a b c", 3, "fsdp", backups=1))
    for victim in range(3):
        (names[victim],) = nodes.replace(names[victim])
        (now,) = in_worlds(RANKS + go_on(" ".join(names), 3, "fsdp", backups=1))
        assert {(rank["step"], rank["source"]) for rank in now} == {(3 + victim, "memory+backup")}
        assert {rank["digest"] for rank in now} == {before[0]["digests"][-1]}
        told = next(note for note in now[0]["notes"] if note.startswith(f"continues from step {3 + victim}"))
        assert f"rank {victim} from the backup on " in told
        before = now


@pytest.mark.parametrize("world", [3, 4])
def test_any_two_nodes_are_lost_at_once(nodes: Nodes, world: int) -> None:
    """Every pair of three and of four nodes, one pair after the other: the step that was backed up is in memory.

    Where memory allows, two backups are the default under the agents; those that replace lost nodes get theirs anew.
    """
    names = list("abcd"[:world])
    nodes.up(*names)
    (before,) = in_worlds(RANKS + train(" ".join(names), world, "fsdp"))
    placed = place(PlacementGrid({"ranks": world}, 1), 2)
    assert placed is not None
    assert [tuple(others) for others in before[0]["backups"]] == list(placed.backups)
    for number, pair in enumerate(itertools.combinations(range(world), 2)):
        for node, new in zip(pair, nodes.replace(*(names[node] for node in pair)), strict=True):
            names[node] = new
        (now,) = in_worlds(RANKS + go_on(" ".join(names), world, "fsdp"))
        assert {(rank["step"], rank["source"]) for rank in now} == {(3 + number, "memory+backup")}
        assert {rank["digest"] for rank in now} == {before[0]["digests"][-1]}
        before = now


def test_ranks_that_change_places_load_from_memory(nodes: Nodes) -> None:
    """Slurm numbers ranks by the order of the nodes: with another node all may move. A new world size fits, too."""
    nodes.up("a", "b", "c", "d")
    (saved,) = in_worlds(RANKS + train("a b c", 3, "fsdp"))
    nodes.lose("a")
    moved, fewer = in_worlds(RANKS + load("c d b", 3, "fsdp") + load("b c", 2, "ddp"))
    for loaded in (moved, fewer):
        assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
        assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}


def test_any_whole_group_is_lost(nodes: Nodes) -> None:
    """The groups are found in the tensors' mesh; one backup, and both nodes of a tensor or a data-parallel group go.

    A rank a node; tensor groups 0 1 and 2 3, replicas 0 2 and 1 3; one group after the other.
    """
    names = ["a", "b", "c", "d"]
    nodes.up(*names)
    (before,) = in_worlds(RANKS + train(" ".join(names), 4, "fsdp+tp", backups=1))
    placed = place(PlacementGrid({"tp": 2, "dp": 2}, 1))
    assert placed is not None
    assert placed.shared == 0
    assert [tuple(others) for others in before[0]["backups"]] == list(placed.backups)
    for number, group in enumerate([(0, 1), (2, 3), (0, 2), (1, 3)]):
        for node, new in zip(group, nodes.replace(*(names[node] for node in group)), strict=True):
            names[node] = new
        (now,) = in_worlds(RANKS + go_on(" ".join(names), 4, "fsdp+tp", backups=1))
        assert {(rank["step"], rank["source"]) for rank in now} == {(3 + number, "memory+backup")}
        assert {rank["digest"] for rank in now} == {before[0]["digests"][-1]}
        before = now


DEAF = (
    "from slurm_robust.checkpoint.saving.backup import receiver; "
    "receiver.BackupReceiver._serve = lambda _, sock: sock.close()"
)
HASTY = "from slurm_robust.checkpoint.saving.backup import sender; sender._SUCCESSOR_S = 0.2"


def test_one_of_two_backups_is_out_of_reach(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node b takes nobody's copies: each rank that wants it to is told once, and saves go on to the other backup."""
    bootstrap = persisters._BOOTSTRAP
    for name, hook in (("a", HASTY), ("b", f"{DEAF}; {HASTY}"), ("c", HASTY)):
        monkeypatch.setattr(persisters, "_BOOTSTRAP", bootstrap.replace("; from", f"; exec({hook!r}); from"))
        nodes.up(name)
        with nodes.looked_after():
            in_worlds(RANKS + f'run(1, on_nodes, "{name}", lambda rank: Checkpointer({NO_DISK!r}).link.open())')
    monkeypatch.setattr(persisters, "_BOOTSTRAP", bootstrap)
    heard = "said = []\nCheckpointer._log = lambda self, text: said.append(text)\n"
    heard += 'def hearing(*args):\n    return {**backed_up(*args), "said": said}\n'
    (saved,) = in_worlds(RANKS + heard + train("a b c", 3, "fsdp").replace("backed_up", "hearing"))
    words = [[text for text in rank["said"] if "its backup" in text] for rank in saved]
    assert [len(told) for told in words] == [1, 0, 1]
    assert all("node b does not keep its backup" in told[0] for told in (words[0], words[2]))
    new = nodes.replace("a", "b")
    (loaded,) = in_worlds(RANKS + load(f"{new[0]} {new[1]} c", 3, "fsdp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}


KILLED = """
import signal, threading
def dies(mark):
    while not Path(mark).exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
def killed(rank, directory, mark, backups):
    training = Training("fsdp")
    saver = Checkpointer(directory, backups=backups)
    digests = {}
    for number in (1, 2, 3):
        training.step(number)
        digests[number] = training.digest()
    Path(f"{mark}.{rank}").write_text(json.dumps(digests))
    training = Training("fsdp")
    dist.barrier()
    threading.Thread(target=dies, args=(mark,)).start()
    try:
        for number in (1, 2, 3):
            training.step(number)
            saver.save(number, training.state)
    except RuntimeError:
        pass  # the others are gone
    time.sleep(60)
"""
HOOKED = """
import itertools, os, signal
from slurm_robust.checkpoint.saving.shared import file_writer as writing
point, nth, mark = os.environ["KILL_AT"].split(":")
times = itertools.count(1)
def reached(here):
    if here == point and next(times) == int(nth):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
writing.reached = reached
"""


@pytest.mark.parametrize(
    ("point", "nth", "backups", "steps"),
    [
        ("backup chunk sent", 3, 1, {2}),
        ("backup chunk sent", 3, 2, {1, 2}),  # of its second copy; the first is on both others, maybe the second on one
        ("backup chunk taken", 3, 1, {2, 3}),  # of another rank's; its own third may have been kept elsewhere before
        ("backup kept", 3, 2, {1, 2}),  # its second, by one of two; others are killed with it, maybe in their second
    ],
)
def test_a_node_is_lost_in_a_transfer(
    nodes: Nodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    point: str,
    nth: int,
    backups: int,
    steps: set[int],
) -> None:
    """Half a copy takes no whole one's place: the step that was backed up before is there, and none is mixed."""
    mark = tmp_path / "killed"
    nodes.up("b", "c")
    with monkeypatch.context() as hooked:
        hooked.setattr(persisters, "_BOOTSTRAP", persisters._BOOTSTRAP.replace("; from", f"; exec({HOOKED!r}); from"))
        hooked.setenv("KILL_AT", f"{point}:{nth}:{mark}")
        nodes.up("a")
    program = f'run(3, on_nodes, "a b c", killed, {NO_DISK!r}, {str(mark)!r}, {backups}, expect=-9)'
    in_worlds(RANKS + "import time\nfrom pathlib import Path\n" + KILLED + program)
    nodes.lose("a")
    nodes.up("d")
    (loaded,) = in_worlds(RANKS + load("d b c", 3, "fsdp"))
    (step,) = {rank["step"] for rank in loaded}
    assert step in steps
    assert {rank["digest"] for rank in loaded} == {json.loads((tmp_path / "killed.0").read_text())[str(step)]}


def test_a_lost_ranks_backup_is_written(nodes: Nodes, tmp_path: Path) -> None:
    """What was loaded from memory and is on no disk yet is written then: by whoever has it."""
    ckpt = tmp_path / "gone" / "ckpt"
    (tmp_path / "gone").write_text("where checkpoints go is away")
    nodes.up("a", "b")
    (saved,) = in_worlds(RANKS + train("a b", 2, "fsdp").replace(NO_DISK, str(ckpt)))
    nodes.lose("a")
    nodes.up("c")
    (tmp_path / "gone").unlink()
    (loaded,) = in_worlds(RANKS + load("c b", 2, "fsdp").replace(NO_DISK, str(ckpt)))
    assert {rank["step"] for rank in loaded} == {3}
    deadline_s = time.monotonic() + 30
    while checkpoint.latest(ckpt).step != 3 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert checkpoint.latest(ckpt, deep=True).step == 3
    nodes.lose("b", "c")
    nodes.up("d")
    (again,) = in_worlds(RANKS + load("d", 1, "plain").replace(NO_DISK, str(ckpt)))
    assert {(rank["step"], rank["source"]) for rank in again} == {(3, "files")}
    assert {rank["digest"] for rank in again} == {saved[0]["digests"][-1]}


def test_a_persister_that_dies_keeps_backups_again(nodes: Nodes, tmp_path: Path) -> None:
    """Its successor listens where it did, and has memory for the others' copies: the next save is backed up there."""
    nodes.up("a", "b", "c")
    program = f"""
import time
def saves(rank, directory):
    training = Training("fsdp")
    saver = Checkpointer(directory)
    for number in range(1, 5):
        training.step(number)
        assert saver.save(number, training.state)
        saver.wait(1.0)
        if number == 2:
            dist.barrier()
            if rank == 0:
                Path("{tmp_path}/two").touch()
                while not Path("{tmp_path}/killed").exists():
                    time.sleep(0.01)
            dist.barrier()
    while not saver._buffers.safe():
        saver._receive(0.02)
    dist.barrier()
    return training.digest()
told(run(3, on_nodes, "a b c", saves, {NO_DISK!r}))
"""

    def kill() -> None:
        while not (tmp_path / "two").exists():
            time.sleep(0.01)
        nodes.kill_persister("b")
        (tmp_path / "killed").touch()

    killing = threading.Thread(target=kill)
    killing.start()
    with nodes.looked_after():
        (saved,) = in_worlds(RANKS + program)
    killing.join()
    new = nodes.replace("a", "c")  # of both b is to have the backups
    (loaded,) = in_worlds(RANKS + load(f"{new[0]} b {new[1]}", 3, "fsdp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(4, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == set(saved)


def test_a_persister_that_dies_while_another_node_sends_to_it(nodes: Nodes, tmp_path: Path) -> None:
    """Its rank has nothing to wait for itself, but others wait for it: it brings a successor, and nobody gives up."""
    nodes.up("a", "b")
    program = f"""
import time
def saves(rank, directory):
    torch.manual_seed(1)
    state = {{"large": torch.rand(1_000_000), "small": torch.rand(10)}}
    saver = Checkpointer(directory, backups=BackupOptions(bytes_per_s=4_000_000))
    saver.prepare(state)
    if saver._plan.layout.file_bytes < 100_000:
        Path("{tmp_path}/small").write_text("ab"[rank])
    for step in (1, 2):
        assert saver.save(step, state)
    dist.barrier()
    if rank == 0:
        Path("{tmp_path}/two").touch()
    began_s = time.monotonic()
    assert saver.save(3, state)
    took_s = time.monotonic() - began_s
    while saver.ranks.maximum(int(not saver._buffers.safe())) != [0]:
        saver._buffers.ensure_alive()
    return took_s
told(run(2, on_nodes, "a b", saves, {NO_DISK!r}))
"""

    def kill() -> None:
        while not (tmp_path / "two").exists():
            time.sleep(0.01)
        time.sleep(0.3)  # the third save has begun, and waits for the second one to be sent: 1 s for 4 MB
        nodes.kill_persister((tmp_path / "small").read_text())

    killing = threading.Thread(target=kill)
    killing.start()
    with nodes.looked_after():
        (took_s,) = in_worlds(RANKS + program)
    killing.join()
    assert max(took_s) < 8.0
