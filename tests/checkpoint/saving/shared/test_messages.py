"""Messages are read as they were written; the bytes are those that earlier versions of the same protocol send."""

from __future__ import annotations

import typing

import msgspec
import pytest

from slurm_robust.checkpoint.saving.shared import messages
from slurm_robust.checkpoint.saving.shared.image import Note

BYTES = [
    (messages.FromRank, messages.SlotComplete(), {"t": "go"}),
    (messages.FromRank, messages.AskHeldImage(directory="/d", rank=3), {"t": "hello", "directory": "/d", "rank": 3}),
    (
        messages.FromRank,
        messages.ReserveBackup(directory="/d", rank=3, of=1, turn=0, total_bytes=9, run="r", secret="5e"),
        {"t": "room", "directory": "/d", "rank": 3, "of": 1, "turn": 0, "total_bytes": 9, "run": "r", "secret": "5e"},
    ),
    (
        messages.FromRank,
        messages.ReleaseOthers(directory="/d", rank=3, own=(2, 3), backups=(0,), resumed="", step=-1),
        {"t": "settle", "directory": "/d", "rank": 3, "own": [2, 3], "backups": [0], "resumed": "", "step": -1},
    ),
    (messages.FromPersister, messages.ImageRefused(why="full"), {"t": "refused", "why": "full"}),
    (messages.FromPersister, messages.Listening(why="no"), {"t": "listen", "why": "no"}),
    (messages.FromPersister, messages.Inventory(ranks=((3, True),)), {"t": "inventory", "ranks": [[3, True]]}),
    (
        messages.Notification,
        messages.SaveEnded(step=7, failure="", warning=""),
        {"t": "ended", "step": 7, "failure": "", "warning": ""},
    ),
    (messages.Notification, messages.Notice(text="a"), {"t": "word", "text": "a"}),
    (messages.OfferReply, messages.OfferReply(no="full"), {"no": "full"}),
    (messages.OfferReply, messages.OfferReply(static=True), {"static": True}),
    (messages.CopyReply, messages.CopyReply(kept=True), {"kept": True}),
    (
        messages.CopyOffer,
        messages.CopyOffer(description="{}", sizes=(1, 2), number=4, note=Note("r-1", 7, "step-7", 1.0)),
        {
            "description": "{}",
            "sizes": [1, 2],
            "number": 4,
            "note": {"save_id": "r-1", "step": 7, "folder": "step-7", "saved_at_s": 1.0, "tiers": ["shared"]},
        },
    ),
]


@pytest.mark.parametrize(("kind", "message", "as_json"), BYTES, ids=lambda one: type(one).__name__)
def test_a_message_on_the_wire(kind: object, message: msgspec.Struct, as_json: dict[str, object]) -> None:
    """One JSON object each."""
    data = msgspec.json.encode(message)
    assert msgspec.json.decode(data) == as_json
    assert msgspec.json.decode(data, type=kind) == message


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"t":"other"}', b'{"t":"room","of":"x"}'])
def test_anything_else_is_no_message(data: bytes) -> None:
    """A ValueError, for which a connection is closed."""
    with pytest.raises(ValueError, match=r"."):
        msgspec.json.decode(data, type=messages.FromRank)


def test_every_request_has_a_reply_class_of_its_own() -> None:
    """No two messages in one direction share a tag, and none is missing in its union."""
    for union, base in (
        (messages.FromRank, messages.RankRequest),
        (messages.FromPersister, messages.PersisterReply),
    ):
        assert set(base.__subclasses__()) <= set(typing.get_args(union))
