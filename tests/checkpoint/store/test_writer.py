"""A save that is killed, refused or half done at any point leaves the checkpoint before it chosen, bit for bit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.find import latest
from slurm_robust.checkpoint.store.reader import load
from slurm_robust.checkpoint.store.writer import SaveGroup, save

POINTS = (
    "folder made",
    "file written",
    "file flushed",
    "file renamed",
    "part noted",
    "about to seal",
    "sealed",
)

VICTIM = """
import os, signal, sys
import torch
from slurm_robust import checkpoint
from slurm_robust.checkpoint.store import writer as module
directory, first, second = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for point in sys.argv[4:]:
    where = f"{directory}/{point}"
    checkpoint.save(where, first, {"w": torch.full((1000,), 1.0), "n": 1})
    pid = os.fork()
    if pid == 0:
        module._reached = lambda here: os.kill(os.getpid(), signal.SIGKILL) if here == point else None
        checkpoint.save(where, second, {"w": torch.full((1000,), 2.0), "n": 2})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, point
"""


@pytest.mark.parametrize("second", [2, 1], ids=["next step", "same step again"])
def test_killed_at_every_point(tmp_path: Path, second: int) -> None:
    """Kill -9 wherever a save stands: until the seal is there the one before is chosen and loads; then the new one."""
    subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path), "1", str(second), *POINTS], check=True, timeout=120)
    for point in POINTS:
        found = latest(tmp_path / point, deep=True)
        expected = 2 if point == "sealed" else 1
        assert found.path is not None, point
        assert found.step == (second if expected == 2 else 1), point
        state = load(found.path)
        assert state["n"] == expected, point
        assert torch.equal(state["w"], torch.full((1000,), float(expected))), point


def test_a_save_after_a_killed_one_cleans_up(tmp_path: Path) -> None:
    """The next save of the step succeeds, and nothing of the killed one is left."""
    subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path), "1", "2", *POINTS], check=True, timeout=120)
    for point in POINTS:
        assert save(tmp_path / point, 2, {"n": 3})
        folder = tmp_path / point / "step-00000002"
        assert load(folder)["n"] == 3
        assert sorted(p.name.split(".")[0] for p in folder.iterdir()) == ["rank-00000", "seal"], point


def test_what_was_saved_loads_bit_for_bit(tmp_path: Path) -> None:
    """NaNs, odd types and shapes come back as they were."""
    state = {
        "bf16": torch.randn(7, 3).to(torch.bfloat16),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "empty": torch.empty(0),
        "lr": 0.1,
    }
    assert save(tmp_path, 5, state)
    back = load(tmp_path / "step-00000005")
    assert back["lr"] == 0.1
    for name in ("bf16", "nan", "empty"):
        assert back[name].dtype == state[name].dtype
        assert (
            back[name].numpy(force=True).tobytes() == state[name].numpy(force=True).tobytes()
            if name != "bf16"
            else (torch.equal(back[name], state[name]))
        )


def both(tmp_path: Path, *states: dict[str, Any], required: bool = True) -> list[object]:
    """Two ranks save, as two threads; what each returned or raised."""
    barrier = threading.Barrier(2, timeout=30)
    outcomes: list[object] = [None, None]

    def one(rank: int) -> None:
        try:
            outcomes[rank] = save(
                tmp_path,
                1,
                states[rank],
                group=SaveGroup(rank=rank, world_size=2, barrier=lambda: void(barrier)),
                required=required,
            )
        except CheckpointError as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def void(barrier: threading.Barrier) -> None:
    """Wait; the number is of no use."""
    barrier.wait()


def test_two_ranks(tmp_path: Path) -> None:
    """Each writes its own file; one seal stands over both, and no parts are left."""
    assert both(tmp_path, {"r": 0}, {"r": 1}) == [True, True]
    path = latest(tmp_path).path
    assert path is not None
    assert [load(path, rank)["r"] for rank in (0, 1)] == [0, 1]
    assert sorted(p.name for p in path.iterdir()) == ["rank-00000.pt", "rank-00001.pt", "seal.json"]
    with pytest.raises(CheckpointError, match="no file of rank 2; it was written by 2 ranks"):
        load(path, 2)


@pytest.mark.parametrize("bad", [0, 1])
def test_one_rank_that_cannot_write(tmp_path: Path, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sealed, nobody waits for ever, every rank says so; a stale part is not taken for the new one."""
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    stale = folder / f"rank-{bad:05d}.pt"
    torch.save({"r": "stale"}, stale)
    part = seals.describe(folder, stale.name, files.digest(stale))
    (folder / f"part-{bad:05d}.json").write_bytes(msgspec.json.encode(part))
    (folder / f".rank-{bad:05d}.pt.tmp").mkdir()  # where this rank wants to write
    outcomes = both(tmp_path, {"r": 0}, {"r": 1})
    assert all(isinstance(outcome, CheckpointError) for outcome in outcomes)
    assert "cannot be written" in str(outcomes[bad])
    assert latest(tmp_path).path is None
    assert both(tmp_path, {"r": 0}, {"r": 1}, required=False) == [False, False]


def test_several_ranks_need_a_barrier(tmp_path: Path) -> None:
    """Without one the seal could be written before the files are."""
    with pytest.raises(CheckpointError, match="needs a barrier"):
        save(tmp_path, 1, {}, group=SaveGroup(rank=0, world_size=2))


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training goes on with a loud word, the checkpoint before stands, and nothing is left that takes room."""
    assert save(tmp_path, 1, {"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert not save(tmp_path, 2, {"w": torch.zeros(100_000)}, required=False)
        with pytest.raises(CheckpointError, match=r"(?s)step-00000002.*cannot be written.*untouched"):
            save(tmp_path, 2, {"w": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert "step 2 is not saved, training continues" in said
    assert "File too large" in said
    assert list((tmp_path / "step-00000002").iterdir()) == []
    assert latest(tmp_path).step == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """It is said which, and what to look at."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        save(tmp_path / "file", 1, {})


def test_what_reads_back_wrong_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that changed between the program and the file are noticed when they are written."""
    real = os.fsync

    def rot(fd: int) -> None:
        real(fd)
        for path in (tmp_path / "step-00000001").glob("*.pt.tmp"):
            with path.open("r+b") as file:
                file.seek(64)
                file.write(b"\xff")

    monkeypatch.setattr(os, "fsync", rot)
    with pytest.raises(CheckpointError, match="the bytes read back differ from those written"):
        save(tmp_path, 1, {"w": torch.zeros(100)})
    assert latest(tmp_path).path is None


def test_load_finds_silent_corruption_and_demotes(tmp_path: Path) -> None:
    """A bit that flipped with all times unchanged: load names file and digests, and the next start passes it over."""
    save(tmp_path, 1, {"n": 1})
    save(tmp_path, 2, {"w": torch.zeros(1000)})
    where = tmp_path / "step-00000002" / "rank-00000.pt"
    stat = where.stat()
    data = bytearray(where.read_bytes())
    data[len(data) // 2] ^= 4
    with where.open("r+b") as file:
        file.write(data)
    os.utime(where, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert latest(tmp_path).step == 2
    with pytest.raises(CheckpointError, match=r"rank-00000.pt: its bytes changed.*srobust ckpt latest"):
        load(tmp_path / "step-00000002")
    found = latest(tmp_path)
    assert found.step == 1
    assert "demoted" in found.passed_over[0][1]
    save(tmp_path, 2, {"w": torch.zeros(1000)})
    assert latest(tmp_path).step == 2


def test_load_refuses_what_nobody_verified(tmp_path: Path) -> None:
    """No seal, a missing file: each is said."""
    save(tmp_path, 1, {"n": 1})
    (tmp_path / "step-00000001" / "rank-00000.pt").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"rank-00000.pt: missing"):
        load(tmp_path / "step-00000001")
    (tmp_path / "step-00000001" / "seal.json").unlink()
    with pytest.raises(CheckpointError, match="it was never verified"):
        load(tmp_path / "step-00000001")


def test_load_reads_what_was_sealed_from_outside(tmp_path: Path) -> None:
    """A plain torch.save file under a seal loads, too."""
    torch.save({"n": 9}, tmp_path / "model-step-9.pt")
    checkpoint.seal(tmp_path / "model-step-9.pt")
    assert load(tmp_path / "model-step-9.pt")["n"] == 9


def test_small_files_appear_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old content and no temporary file."""
    files.write_atomic(tmp_path / "x", b"old")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(tmp_path / "x", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_the_keywords_of_before_work_for_one_version(tmp_path: Path) -> None:
    """With a warning; an unknown one is refused, as Python itself would."""
    with pytest.warns(DeprecationWarning, match=r"use group=SaveGroup\(rank=..., world_size=...\)"):
        assert save(tmp_path, 1, {"w": 1}, rank=0, world_size=1)
    with pytest.warns(DeprecationWarning, match="SaveGroup"), pytest.raises(TypeError):
        save(tmp_path, 1, {}, wrld_size=1)
