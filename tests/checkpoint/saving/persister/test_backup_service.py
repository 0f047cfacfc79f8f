"""A persister keeps the memory of those who sit there, and of those alone."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_robust.checkpoint.saving.persister.backup_service import BackupService
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, Note, sizes
from slurm_robust.checkpoint.saving.shared.messages import ReleaseOthers

MADE = sizes(4096, 100)


def writer(directory: str, rank: int, *steps: int) -> ImageWriter:
    """A rank's, with complete and written copies of these steps."""
    fd = os.memfd_create("image")
    os.posix_fallocate(fd, 0, MADE.total_bytes)
    image = Image(fd)
    told = ImageDescription(
        directory=directory, rank=rank, world_size=4, file="f", file_bytes=100, metadata_bytes=0, digest="d"
    )
    image.describe(MADE, told, b"")
    for slot, step in enumerate(steps):
        image.commit(slot, step, Note(f"save-{step}", step, f"step-{step}", float(step)))
        image.finish(slot, step, b"\1" * 16)
    image.close()
    return ImageWriter(cast("Any", SimpleNamespace(wake=lambda: None)), fd)


def steps_of(writer: ImageWriter) -> list[int]:
    """Of its complete copies."""
    return sorted(held[1].step for slot in SLOTS if (held := writer.image.held(slot)))


@pytest.mark.parametrize(
    ("resumed", "step", "left"),
    [
        ("", -1, [7, 8]),  # nothing was loaded: who knows what they are good for
        ("save-7", 7, [7]),  # 8 is not everywhere, and 7 must not be the one that is copied over next
        ("save-8", 8, [8]),
        ("", 9, [7, 8]),  # the disk had something newer
        ("", 7, [7]),  # gone back to a file: 8 is of a way that was given up
        ("", 3, []),
    ],
)
def test_copies_that_came_after_what_is_resumed_are_void(resumed: str, step: int, left: list[int]) -> None:
    """Another folder's are left alone, and so is a rank's memory that still sits there."""
    writers = {("/d", 1): writer("/d", 1, 7, 8), ("/d", 2): writer("/d", 2, 7, 8), ("/e", 1): writer("/e", 1, 7, 8)}
    service = BackupService(cast("Any", None), writers)
    service._release_others(ReleaseOthers(directory="/d", own=(1,), backups=(), resumed=resumed, step=step))
    assert sorted(writers) == [("/d", 1), ("/e", 1)]
    assert steps_of(writers["/d", 1]) == left
    assert steps_of(writers["/e", 1]) == [7, 8]
    for one in writers.values():
        one.drop()


def test_memory_that_does_not_fit_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup is counted as the rank's own buffers are; room that is there already is not taken twice."""
    service = BackupService(cast("Any", SimpleNamespace(wake=lambda: None)), {})
    why = service._reserve(("/d", 5), 1 << 50)
    assert why.startswith("rank 5: its backup on another node takes 1048576.00 GiB, and ")
    assert service._reserve(("/d", 5), MADE.total_bytes) == ""
    monkeypatch.setattr("slurm_robust.checkpoint.saving.shared.memory_budget.limits", list)
    kept = service._backup_image(("/d", 5))
    assert service._reserve(("/d", 5), MADE.total_bytes) == ""
    assert service._backup_image(("/d", 5)) is kept
    service._release_others(ReleaseOthers(directory="/d", own=(), backups=(), resumed="", step=-1))
    assert service.writers == []
