"""A writer is idle once nothing of it is being written; its memory may go before a seal comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slurm_robust.checkpoint.base import rollback_log
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.image import Image, ImageDescription, Note, sizes
from slurm_robust.checkpoint.store import find

FILE_BYTES = 5000
NOTE = Note("run-1", 7, "step-7", 1.0)
WAIT_S = 10.0


class PersisterStub:
    """A persister of which only the seals are asked for; they stay open until the test says so."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.done: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Nobody waits."""

    def seal(
        self, writer: ImageWriter, description: ImageDescription, folder: Path, note: Note, done: Callable[[], None]
    ) -> None:
        """Leave it open."""
        self.done.append(done)
        self.asked.set()


def one_copy(
    directory: Path, *, rank: int, backup: bool = False, tiers: tuple[str, ...] = ("memory",)
) -> tuple[ImageWriter, PersisterStub]:
    """A writer with one copy, of step 7, that goes to these tiers; of them it is in memory only."""
    made = sizes(4096, FILE_BYTES)
    fd = os.memfd_create("image")
    os.posix_fallocate(fd, 0, made.total_bytes)
    image = Image(fd)
    image.describe(
        made,
        ImageDescription(
            directory=str(directory),
            rank=rank,
            world_size=2,
            file=f"__{rank}_0.distcp",
            file_bytes=FILE_BYTES,
            metadata_bytes=1,
            digest="",
        ),
        b"m",
    )
    image.commit(0, 1, msgspec.structs.replace(NOTE, tiers=tiers))
    if tiers == ("memory",):
        image.finish(0, 1)
    sealing = PersisterStub()
    return ImageWriter(sealing, fd, backup=image if backup else None), sealing


@pytest.mark.parametrize("backup", [False, True])
def test_what_is_being_written_for_a_flush_is_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backup: bool
) -> None:
    """A persister that is to end asks whether all is idle, and ends then: not while a flush still writes."""
    writes, goes_on = threading.Event(), threading.Event()

    def reached(point: str) -> None:
        if point == "file written":
            writes.set()
            goes_on.wait(WAIT_S)

    monkeypatch.setattr(file_writer, "reached", reached)
    monkeypatch.setattr(file_writer, "ANOTHER_S", 0.05)
    writer, _ = one_copy(tmp_path, rank=1, backup=backup)
    writer.flush()
    assert writes.wait(WAIT_S)
    assert not writer.idle
    goes_on.set()
    writer.drop()
    assert (tmp_path / "step-7" / "part-00001.json").exists()


@pytest.mark.parametrize("tiers", [("memory",), ("memory", "shared")])
def test_a_seal_that_comes_after_its_memory_went(tmp_path: Path, tiers: tuple[str, ...]) -> None:
    """Whoever wants the memory does not wait for other nodes' files; the seal that waits for them does not fail."""
    writer, sealing = one_copy(tmp_path, rank=0, tiers=tiers)
    writer.flush()
    writer.start()
    assert sealing.asked.wait(WAIT_S)
    writer.drop()
    (done,) = sealing.done
    done()
    assert (tmp_path / "step-7" / "part-00000.json").exists()


def test_what_a_lost_node_wrote_and_could_not_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's node wrote its share, and is gone: whoever has its backup writes nothing again, but seals."""
    monkeypatch.setattr(file_writer, "ANOTHER_S", 0.05)
    writer, sealing = one_copy(tmp_path, rank=0)
    writer.flush()
    assert sealing.asked.wait(WAIT_S)
    part = tmp_path / "step-7" / "part-00000.json"
    written_ns = part.stat().st_mtime_ns
    backup, its_sealing = one_copy(tmp_path, rank=0, backup=True)
    backup.flush()
    assert its_sealing.asked.wait(WAIT_S)
    assert part.stat().st_mtime_ns == written_ns
    for one in (writer, backup):
        one.drop()


def test_two_that_seal_the_same_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes second, at whatever point of the first one's sealing: both find it sealed, and neither fails."""
    writer, sealing = one_copy(tmp_path, rank=0)
    writer.flush()
    assert sealing.asked.wait(WAIT_S)
    folder = tmp_path / "step-7"

    def seal() -> None:
        file_writer.seal_when_complete(folder, NOTE, 1, lambda: True)

    def reached(point: str) -> None:
        if point == "about to seal":
            monkeypatch.setattr(file_writer, "reached", lambda _: None)
            seal()  # the other one is through meanwhile

    monkeypatch.setattr(file_writer, "reached", reached)
    seal()
    seal()
    writer.drop()
    assert sorted(path.name for path in folder.iterdir()) == [".metadata", "__0_0.distcp", "seal.json"]


def test_a_seal_that_comes_after_a_rollback_does_not_bring_the_state_back(tmp_path: Path) -> None:
    """Files and seal are younger than the rollback, the state in them is older: the checkpoint is not chosen."""
    rollback_log.add(tmp_path, rollback_log.Rollback(at_s=2.0, to_step=3, why="loss nan", first_batch=4, last_batch=8))
    writer, sealing = one_copy(tmp_path, rank=0)
    writer.flush()
    assert sealing.asked.wait(WAIT_S)
    file_writer.seal_when_complete(tmp_path / "step-7", NOTE, 1, lambda: True)
    writer.drop()
    (found,) = find.entries(tmp_path)
    assert (found.sealed, found.problem) == (True, "abandoned: loss nan, and training was rolled back to step 3")
