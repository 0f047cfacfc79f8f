"""Each rank's copies are kept on another node, too: what was backed up comes back whichever node is lost."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from saving_nodes import RANKS, Nodes
from worlds_server import in_worlds

from slurm_robust import checkpoint
from slurm_robust.checkpoint.saving.placement import Layout, lost, place
from slurm_robust.supervise.agent import persist

NO_DISK = "/proc/no-such-place"
"""Nothing is ever written there: what comes back comes from memory."""


def train(nodes: str, world: int, layout: str, **options: Any) -> str:
    """A line of a program: a world that saves three steps to memory and to other nodes."""
    return f'told(run({world}, on_nodes, "{nodes}", backed_up, {NO_DISK!r}, "{layout}", 3, {options!r}))\n'


def load(nodes: str, world: int, layout: str, **options: Any) -> str:
    """A line of a program: a world that goes on."""
    return f'told(run({world}, on_nodes, "{nodes}", resumed, {NO_DISK!r}, "{layout}", {options!r}))\n'


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_any_one_node_is_lost(nodes: Nodes, victim: str) -> None:
    """Three nodes; the replacement of the lost one has an empty memory, and all ranks go on bit for bit."""
    nodes.up("a", "b", "c")
    (saved,) = in_worlds(RANKS + train("a b c", 3, "fsdp"))
    nodes.lose(victim)
    nodes.up("d")
    names = " ".join("d" if name == victim else name for name in ("a", "b", "c"))
    (loaded,) = in_worlds(RANKS + load(names, 3, "fsdp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}
    told = next(note for note in loaded[0]["notes"] if note.startswith("goes on from step 3"))
    assert f"ranks {'abc'.index(victim)} from their backup on " in told


def test_ranks_that_change_places_load_from_memory(nodes: Nodes) -> None:
    """Slurm numbers ranks by the order of the nodes: with another node all may move. A new world size fits, too."""
    nodes.up("a", "b", "c", "d")
    (saved,) = in_worlds(RANKS + train("a b c", 3, "fsdp"))
    nodes.lose("a")
    moved, fewer = in_worlds(RANKS + load("c d b", 3, "fsdp") + load("b c", 2, "ddp"))
    for loaded in (moved, fewer):
        assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
        assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}


def test_any_two_nodes_are_lost(nodes: Nodes) -> None:
    """Of four nodes that keep each other's in pairs, both of a pair are fatal, said so by the placement; no others."""
    nodes.up("a", "b", "c", "d")
    (saved,) = in_worlds(RANKS + train("a b c d", 4, "fsdp"))
    backup = tuple((other,) for other in saved[0]["backup"])
    layout = Layout({"ranks": 4}, 1)
    placed = place(layout)
    assert placed is not None
    assert backup == placed.backups
    fatal = [set(pair) for pair in itertools.combinations(range(4), 2) if lost(layout, backup, set(pair))]
    assert fatal == [{0, 2}, {1, 3}]
    nodes.lose("a", "b")
    nodes.up("e", "f")
    (loaded,) = in_worlds(RANKS + load("e f c d", 4, "fsdp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}
    nodes.lose("c", "e")
    nodes.up("g", "h")
    (none,) = in_worlds(RANKS + load("g f h d", 4, "fsdp"))
    assert {rank["step"] for rank in none} == {None}


GROUPS = Layout({"tp": 2, "dp": 2}, 1)
"""A rank a node; tensor groups 0 1 and 2 3, replicas 0 2 and 1 3."""


@pytest.mark.parametrize("group", [(0, 1), (2, 3), (0, 2), (1, 3)])
def test_any_whole_group_is_lost(nodes: Nodes, group: tuple[int, int]) -> None:
    """The groups are found in the tensors' mesh; both nodes of a tensor or a data-parallel group may go at once."""
    names = ["a", "b", "c", "d"]
    nodes.up(*names)
    (saved,) = in_worlds(RANKS + train(" ".join(names), 4, "fsdp+tp"))
    placed = place(GROUPS)
    assert placed is not None
    assert placed.shared == 0
    assert tuple((other,) for other in saved[0]["backup"]) == placed.backups
    nodes.lose(*(names[node] for node in group))
    nodes.up("x", "y")
    for new, node in zip("xy", group, strict=True):
        names[node] = new
    (loaded,) = in_worlds(RANKS + load(" ".join(names), 4, "fsdp+tp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(3, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == {saved[0]["digests"][-1]}


KILLED = """
import signal, threading
def dies(mark):
    while not Path(mark).exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
def killed(rank, directory, mark):
    training = Training("fsdp")
    saver = Checkpointer(directory)
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
import os, signal
from slurm_robust.checkpoint.saving import writing
point, nth, mark = os.environ["KILL_AT"].split(":")
seen = 0
def reached(here):
    global seen
    seen += here == point
    if here == point and seen == int(nth):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
writing.reached = reached
"""


@pytest.mark.parametrize(
    ("at", "steps"),
    [
        ("backup chunk sent:2", {1}),
        ("backup chunk sent:3", {2}),
        ("backup chunk taken:3", {2, 3}),  # of another rank's; its own third may have been kept elsewhere before
        ("backup kept:3", {2, 3}),  # other ranks are killed with it, maybe in their third copy
    ],
)
def test_a_node_is_lost_in_a_transfer(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, steps: set[int]
) -> None:
    """Half a copy takes no whole one's place: the step that was backed up before is there, and none is mixed."""
    mark = tmp_path / "killed"
    nodes.up("b", "c")
    with monkeypatch.context() as hooked:
        hooked.setattr(persist, "_BOOTSTRAP", persist._BOOTSTRAP.replace("; from", f"; exec({HOOKED!r}); from"))
        hooked.setenv("KILL_AT", f"{at}:{mark}")
        nodes.up("a")
    program = f'run(3, on_nodes, "a b c", killed, {NO_DISK!r}, {str(mark)!r}, expect=-9)'
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
    """Its successor listens where it did, and has memory for the other's copies: the next save is backed up there."""
    nodes.up("a", "b", "c")
    program = f"""
import time
def go_on(rank, directory):
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
        saver._hear(0.02)
    dist.barrier()
    return training.digest()
told(run(3, on_nodes, "a b c", go_on, {NO_DISK!r}))
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
    nodes.lose("a")  # whose backup is on b
    nodes.up("d")
    (loaded,) = in_worlds(RANKS + load("d b c", 3, "fsdp"))
    assert {(rank["step"], rank["source"]) for rank in loaded} == {(4, "memory+backup")}
    assert {rank["digest"] for rank in loaded} == set(saved)
