"""Several nodes seal one checkpoint: the seal that one would have made, whoever comes late, never, or wrongly."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_material import deepspeed, megatron
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.integrations import Sealer, group
from slurm_robust.checkpoint.store import shared_seal
from slurm_robust.checkpoint.store.seals import Seal
from slurm_robust.checkpoint.store.shared_seal import contribute, forget, seal_together, shares
from slurm_robust.checkpoint.store.verification import verify


def same(first: Seal, second: Seal) -> bool:
    """But for the time."""
    return (first.files, first.step, first.world_size, first.layout) == (
        second.files,
        second.step,
        second.world_size,
        second.layout,
    )


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_each_file_is_in_one_share(sizes: dict[str, int], nodes: int) -> None:
    """All of them, and no share is heavier than another by more than one file."""
    found = shares(sizes, nodes)
    assert sorted(name for share in found for name in share) == sorted(sizes)
    weights = [sum(sizes[name] for name in share) for share in found]
    assert max(weights) - min(weights) <= max(sizes.values(), default=0)


@pytest.mark.parametrize("make", [megatron, deepspeed])
def test_the_same_seal(tmp_path: Path, make: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes' shares make the seal that one makes, and node 0 reads its own only."""
    path = make(tmp_path)
    alone = checkpoint.seal(path)
    (path / "seal.json").unlink()
    for node in (1, 2):
        contribute(path, node, 3)
    own = shares(shared_seal._sizes(path), 3)[0]
    read: list[Path] = []
    real = files.digest

    def counted(where: Path | int, *args: object) -> str:
        read.append(Path(str(where)))
        return real(where, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "digest", counted)
    assert same(seal_together(path, 3), alone)
    assert sorted(read) == sorted(path / name for name in own)
    assert verify(path).verified
    assert not list(path.glob("part-*"))


def test_a_node_that_never_comes(tmp_path: Path) -> None:
    """Its share is read by node 0, after a while."""
    path = megatron(tmp_path)
    contribute(path, 1, 3)
    assert same(seal_together(path, 3, wait_s=0.2), checkpoint.seal(path))


def test_a_node_that_comes_later(tmp_path: Path) -> None:
    """It is waited for."""
    path = megatron(tmp_path)
    late = threading.Timer(0.3, contribute, (path, 1, 2))
    began_s = time.monotonic()
    late.start()
    new = seal_together(path, 2, wait_s=60)
    late.join()
    assert 0.25 < time.monotonic() - began_s < 30
    assert same(new, checkpoint.seal(path))


@pytest.mark.parametrize("how", ["noise", "other files", "an earlier save", "forgotten"])
def test_notes_that_do_not_fit(tmp_path: Path, how: str) -> None:
    """They are of no account: the seal is right all the same."""
    path = megatron(tmp_path)
    victim = min(shares(shared_seal._sizes(path), 2)[1])
    if how == "other files":
        (path / "more.pt").write_bytes((path / victim).read_bytes())
    contribute(path, 1, 2)
    if how == "noise":
        (path / "part-00001.json").write_bytes(b"{")
    elif how == "other files":
        (path / "more.pt").unlink()
    elif how == "forgotten":
        forget(path, 1)
    else:
        (path / victim).write_bytes((path / victim).read_bytes())
    seal_together(path, 2, wait_s=0.1)
    assert verify(path).verified


def test_what_another_node_found_wrong_is_told(tmp_path: Path) -> None:
    """A damaged file of its share: not sealed, and named."""
    path = megatron(tmp_path)
    victim = shares(shared_seal._sizes(path), 2)[1][0]
    (path / victim).write_bytes((path / victim).read_bytes()[:-20])
    contribute(path, 1, 2)
    with pytest.raises(CheckpointError, match=victim):
        seal_together(path, 2, wait_s=1)
    assert not (path / "seal.json").exists()
    (path / victim).unlink()
    contribute(path, 1, 2)
    with pytest.raises(CheckpointError, match="missing"):
        seal_together(path, 2, wait_s=1)


def place(monkeypatch: pytest.MonkeyPatch, rank: int, world: int, **env: int) -> None:
    """Be this rank, in this environment, with torch.distributed up."""
    up = types.SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: world, barrier=lambda: None)
    monkeypatch.setattr(group, "_distributed", lambda: up)
    for names in group._NODE_VARIABLES:
        for name in (*names[:2], *names[2]):
            monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("rank", "env", "told"),
    [
        (0, {"LOCAL_RANK": 0, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 2}, (0, 2)),
        (4, {"LOCAL_RANK": 0, "GROUP_RANK": 1, "GROUP_WORLD_SIZE": 2}, (1, 2)),
        (5, {"LOCAL_RANK": 1, "GROUP_RANK": 1, "GROUP_WORLD_SIZE": 2}, None),
        (4, {"SLURM_LOCALID": 0, "SLURM_NODEID": 1, "SLURM_NNODES": 9, "SLURM_STEP_NUM_NODES": 2}, (1, 2)),
        (0, {"SLURM_LOCALID": 3, "SLURM_NODEID": 1, "SLURM_NNODES": 2}, (0, 1)),
        (3, {"SLURM_LOCALID": 0, "SLURM_NODEID": 0, "SLURM_NNODES": 2}, None),
        (0, {"SLURM_LOCALID": 0, "SLURM_NODEID": 0, "SLURM_NNODES": 99}, (0, 1)),
        (0, {}, (0, 1)),
        (1, {}, None),
    ],
)
def test_who_is_first_on_a_node(
    monkeypatch: pytest.MonkeyPatch, rank: int, env: dict[str, int], told: tuple[int, int] | None
) -> None:
    """By torchrun's or Slurm's words; where they do not fit together, rank 0 is taken to be alone."""
    place(monkeypatch, rank, 8, **env)
    assert group.node() == told


def test_ranks_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every rank calls after a save, in turn: the first of each node takes part, and one seal stands."""
    path = deepspeed(tmp_path)
    for rank in (3, 2, 1, 0):
        node = {"LOCAL_RANK": rank % 2, "GROUP_RANK": rank // 2, "GROUP_WORLD_SIZE": 2}
        place(monkeypatch, rank, 4, **node)
        sealer = Sealer(background=False)
        if rank == 3:
            (path / "part-00001.json").write_text("of an earlier save")
        sealer.begin(path)
        sealer.saved(path)
        assert (path / "part-00001.json").exists() == (rank in {3, 2, 1})
        assert verify(path).sealed == (rank == 0)
