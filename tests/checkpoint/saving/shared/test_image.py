"""A slot is complete or it is nothing, whatever was half written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, Note, sizes

DESCRIPTION = ImageDescription(
    directory="/d",
    rank=3,
    world_size=4,
    file="__3_0.distcp",
    file_bytes=1000,
    metadata_bytes=9,
    digest="d" * 32,
    keep=2,
)


def note(number: int) -> Note:
    """Of the copy with that number."""
    return Note(f"run-{number}", number, f"step-{number:08d}-run", 1.5)


@pytest.fixture
def image() -> Iterator[Image]:
    """An image that was described."""
    made = sizes(4096, 1000)
    fd = os.memfd_create("image")
    os.posix_fallocate(fd, 0, made.total_bytes)
    found = Image(fd, populate=True)
    found.describe(made, DESCRIPTION, b"metadata!")
    yield found
    found.close()
    os.close(fd)


def test_another_process_reads_what_one_wrote(image: Image) -> None:
    """A second mapping of the same descriptor sees description, metadata, copies and their ends."""
    image.slot(1)[:5] = b"hello"
    image.commit(1, 7, note(7))
    image.finish(1, 7, b"\1" * 16)
    other = Image(image.fd)
    assert other.described() == DESCRIPTION
    assert bytes(other.metadata) == b"metadata!"
    assert other.held(1) == (7, note(7))
    assert other.finished(1) == (7, b"\1" * 16)
    assert bytes(other.slot(1)[:5]) == b"hello"
    assert other.newest() == 7
    other.close()


def test_an_empty_memory_is_no_image() -> None:
    """Zeros, as a persister allocates them."""
    fd = os.memfd_create("empty")
    os.ftruncate(fd, 1 << 20)
    found = Image(fd)
    assert found.described() is None
    found.close()
    os.close(fd)


def test_copies_are_due_oldest_first_until_they_are_finished(image: Image) -> None:
    """A slot is free when its own copy is through, written or not; not when the one before it in that slot was."""
    assert [image.free(slot) for slot in SLOTS] == [True, True]
    image.commit(0, 1, note(1))
    image.commit(1, 2, note(2))
    assert [number for _, number, _ in image.due()] == [1, 2]
    image.finish(0, 1, b"\2" * 16)
    assert [number for _, number, _ in image.due()] == [2]
    image.begin(0)
    assert image.held(0) is None
    image.commit(0, 3, note(3))
    assert not image.free(0)
    assert [number for _, number, _ in image.due()] == [2, 3]
    image.finish(1, 2)
    assert image.finished(1) == (2, b"")
    assert image.free(1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1023), value=st.integers(0, 255))
def test_a_garbled_head_is_never_another_copy(image: Image, at: int, value: int) -> None:
    """One wrong byte in a slot's head: the copy is what it was, or it is not there."""
    image.begin(0)
    image.commit(0, 5, note(5))
    before = bytes(image.view[1024:2048])
    image.view[1024 + at] = value
    held = image.held(0)
    image.view[1024:2048] = before
    assert held in (None, (5, note(5)))


def test_a_note_that_does_not_fit_is_refused(image: Image) -> None:
    """And the copy is void."""
    image.begin(0)
    with pytest.raises(ValueError, match="bytes"):
        image.commit(0, 1, Note("x" * 2000, 1, "f", 0.0))
    assert image.held(0) is None


def test_a_copy_is_sent_when_all_its_backups_are(image: Image) -> None:
    """Each backup has marks of its own; those of a copy before do not count, and an empty slot waits for nobody."""
    assert all(image.sent(slot, 2) for slot in SLOTS)
    image.commit(1, 4, note(4))
    assert [image.sent(1, backups) for backups in (0, 1, 2)] == [True, False, False]
    image.mark_sent(1, 4, 1)
    assert [image.sent(1, backups) for backups in (1, 2)] == [False, False]
    image.mark_sent(1, 4, 0)
    assert [image.sent(1, backups) for backups in (1, 2)] == [True, True]
    image.mark_sent(1, 3, 1)
    assert [image.sent(1, backups) for backups in (1, 2)] == [True, False]
    assert image.finished(0) == image.finished(1) == (0, b"")
    assert image.described() == DESCRIPTION
