"""Copies travel from a persister to another one: whole, to the right one, at a bounded rate; else somebody is told."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.backup import handshake
from slurm_robust.checkpoint.saving.backup import sender as sending
from slurm_robust.checkpoint.saving.backup.receiver import BackupImage, BackupReceiver
from slurm_robust.checkpoint.saving.backup.sender import Peer, Sender, Throttle
from slurm_robust.checkpoint.saving.persister.image_writer import ImageWriter
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, Note, sizes
from slurm_robust.checkpoint.saving.shared.messages import PeerAddress

FILE_BYTES = 3 * sending.CHUNK_BYTES + 17
MADE = sizes(4096, FILE_BYTES)
SECRET = b"s" * 32


def memory() -> int:
    """The descriptor of an empty image."""
    fd = os.memfd_create("image")
    os.posix_fallocate(fd, 0, MADE.total_bytes)
    return fd


def note(number: int) -> Note:
    """Of the copy with that number."""
    return Note(f"run-{number}", number, f"step-{number}", float(number))


def copy(image: Image, number: int) -> None:
    """Copy something into a slot."""
    slot = number % 2
    image.begin(slot)
    image.slot(slot)[:FILE_BYTES] = bytes([number]) * FILE_BYTES
    image.commit(slot, number, note(number))


@pytest.fixture
def image() -> Iterator[Image]:
    """Rank 3's."""
    found = Image(memory())
    metadata = b"metadata!"
    digest = xxhash.xxh3_128_hexdigest(metadata)
    found.describe(
        MADE,
        ImageDescription(
            directory="/d",
            rank=3,
            world_size=4,
            file="__3_0.distcp",
            file_bytes=FILE_BYTES,
            metadata_bytes=len(metadata),
            digest=digest,
        ),
        metadata,
    )
    yield found
    found.close()
    os.close(found.fd)


@pytest.fixture
def kept() -> Iterator[BackupImage]:
    """The memory for its backup."""
    found = BackupImage(memory())
    yield found
    found.image.close()
    os.close(found.image.fd)


def until(what: Callable[[], object]) -> None:
    """Wait for it."""
    deadline_s = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def peer(listener: BackupReceiver, **other: object) -> Peer:
    """The address and the secret that the ranks agreed on."""
    at = {"name": "node b", "node": listener.node, "addresses": ("::1", "127.0.0.1"), "port": listener.port}
    at |= {key: value for key, value in other.items() if key in at}
    secret = {key: value for key, value in other.items() if key not in at}
    return Peer(PeerAddress(**at), "run", SECRET)._replace(**secret)


def test_a_backup_is_the_image_byte_for_byte(image: Image, kept: BackupImage) -> None:
    """Description, metadata, both copies with their notes and digests; a third one takes the place of the first."""
    listener = BackupReceiver({("/d", 3): kept}.get, "number")
    listener.admit("run", SECRET)
    copy(image, 1)
    said: list[tuple[int, str]] = []
    sender = Sender(image, peer(listener), Throttle(0), lambda *told: said.append(told))
    for number in (1, 2, 3):
        if number > 1:
            copy(image, number)
            sender.wake.set()
        until(lambda: all(image.sent(slot) for slot in SLOTS))
    sender.end()
    listener.end()
    assert said == []
    assert kept.image.described() == image.described()
    assert kept.image.metadata == b"metadata!"
    found = {held: bytes(kept.image.slot(slot)[:FILE_BYTES]) for slot in SLOTS if (held := kept.image.held(slot))}
    assert found == {(number, note(number)): bytes([number]) * FILE_BYTES for number in (2, 3)}


@pytest.mark.parametrize(
    "wrong", [{"secret": b"x" * 32}, {"run": "other"}, {"node": "else"}, {"addresses": ()}, {"port": 1}]
)
def test_a_stranger_gets_and_gives_nothing(
    image: Image, kept: BackupImage, wrong: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another secret, another run, another node at that address: nothing is sent, once it is told, nobody waits."""
    monkeypatch.setattr(sending, "_SUCCESSOR_S", 0.0)
    listener = BackupReceiver({("/d", 3): kept}.get, "number")
    listener.admit("run", SECRET)
    copy(image, 1)
    said: list[tuple[int, str]] = []
    sender = Sender(image, peer(listener, **wrong), Throttle(0), lambda *told: said.append(told))
    until(lambda: said)
    copy(image, 2)
    sender.wake.set()
    until(lambda: all(image.sent(slot) for slot in SLOTS))
    sender.end()
    listener.end()
    assert [(step, why.partition(":")[0]) for step, why in said] == [(1, "node b does not keep its backup")]
    assert said[0][1].endswith("; training continues without it")
    assert kept.image.described() is None


def test_a_peer_that_comes_back_gets_the_newest(
    image: Image, kept: BackupImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room is there at first: said once; when there is, the newest copy is sent, and that is said, too."""
    monkeypatch.setattr(sending, "_SUCCESSOR_S", 0.0)
    monkeypatch.setattr(sending, "_FIRST_PAUSE_S", 0.1)
    rooms: dict[tuple[str, int], BackupImage] = {}
    listener = BackupReceiver(rooms.get, "number")
    listener.admit("run", SECRET)
    copy(image, 1)
    said: list[tuple[int, str]] = []
    sender = Sender(image, peer(listener), Throttle(0), lambda *told: said.append(told))
    until(lambda: said)
    assert "no memory for a backup of rank 3 is reserved here" in said[0][1]
    copy(image, 2)
    rooms["/d", 3] = kept
    sender.wake.set()
    until(lambda: said[1:])
    assert said[1] == (2, "node b keeps its backup again")
    assert kept.image.newest() == 2
    sender.end()
    listener.end()


def test_a_save_waits_for_both_backups_and_not_for_a_dead_one(
    image: Image, kept: BackupImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two senders, one of them to nobody: the copy counts as sent when the other has it and that one is given up."""
    monkeypatch.setattr(sending, "_SUCCESSOR_S", 0.0)
    listener = BackupReceiver({("/d", 3): kept}.get, "number")
    listener.admit("run", SECRET)
    said: list[tuple[int, str]] = []
    writer = ImageWriter(cast("Any", SimpleNamespace(wake=lambda: None)), image.fd)
    monkeypatch.setattr(writer, "_backup_changed", lambda *told: said.append(told))
    alive, dead = peer(listener), peer(listener, name="node c", port=1)
    writer.send_to([alive, dead], Throttle(0))
    for number in (1, 2, 3):
        copy(image, number)
        assert not all(image.sent(slot, 2) for slot in SLOTS)
        for sender in writer.senders:
            sender.wake.set()
        until(lambda: all(image.sent(slot, 2) for slot in SLOTS))
        assert kept.image.newest() == number
    assert [step for step, _ in said] == [1]
    assert said[0][1].startswith("node c does not keep its backup: ")
    writer.send_to([alive], Throttle(0))
    copy(image, 4)
    writer.senders[0].wake.set()
    until(lambda: all(image.sent(slot, 1) for slot in SLOTS))
    assert not image.sent(0, 2)
    writer.send_to([], Throttle(0))
    listener.end()


def test_what_is_too_large_for_its_place_is_refused(image: Image) -> None:
    """Nothing of it is written."""
    small = os.memfd_create("small")
    os.posix_fallocate(small, 0, 4096 * 4)
    room = BackupImage(small)
    listener = BackupReceiver({("/d", 3): room}.get, "number")
    listener.admit("run", SECRET)
    copy(image, 1)
    with sending.connect(peer(listener))[0] as sock, pytest.raises(ConnectionRefusedError, match="are needed"):
        sending.send_copy(sock, image, sending.Copy(1, 1, note(1)), Throttle(0))
    assert bytes(room.image.view) == bytes(4096 * 4)
    listener.end()
    room.image.close()
    os.close(small)


def test_a_copy_that_is_overwritten_while_it_is_sent_is_none(image: Image, kept: BackupImage) -> None:
    """The one before stays."""
    listener = BackupReceiver({("/d", 3): kept}.get, "number")
    listener.admit("run", SECRET)
    copy(image, 1)
    with sending.connect(peer(listener))[0] as sock:
        sending.send_copy(sock, image, sending.Copy(1, 1, note(1)), Throttle(0))
        copy(image, 2)
        torn = sending.Copy(0, 2, note(2))
        copy(image, 4)
        with pytest.raises(sending.OverwrittenError):
            sending.send_copy(sock, image, torn, Throttle(0))
    assert [held for slot in SLOTS if (held := kept.image.held(slot))] == [(1, note(1))]
    listener.end()


@given(st.binary(max_size=200))
def test_garbage_is_hung_up_on(garbage: bytes) -> None:
    """Whoever does not speak the protocol is told nothing, and harms nobody."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(garbage)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((handshake.HandshakeError, ConnectionError)):
            handshake.authenticate_caller(ours, {"run": SECRET}.get, "number")


def test_both_sides_prove_themselves() -> None:
    """The run's name is what the side that was called learns."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        calling = threading.Thread(target=handshake.authenticate_to, args=(theirs, SECRET, "run", "number"))
        calling.start()
        assert handshake.authenticate_caller(ours, {"run": SECRET}.get, "number") == "run"
        calling.join()


@given(
    rate=st.floats(1.0, 1e9),
    chunks=st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 10)), min_size=1, max_size=30),
)
def test_the_rate_holds_over_any_stretch(rate: float, chunks: list[tuple[int, float]]) -> None:
    """From any chunk on, those before the last took as long as the rate allows, whoever sent them."""
    throttle, now_s = Throttle(rate), 100.0
    turns = []
    for size, later_s in chunks:
        now_s += later_s
        turns.append((throttle.turn(size, now_s), size))
    for first in range(len(turns)):
        sent = sum(size for _, size in turns[first:-1])
        assert turns[-1][0] - turns[first][0] >= sent / rate * (1 - 1e-9) - 1e-6
    assert Throttle(0).turn(1 << 30, 5.0) == 5.0
