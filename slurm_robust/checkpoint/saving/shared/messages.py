"""Defines every message between a rank and its node's persister, and between the persisters of two nodes.

A rank sends a `RankRequest` and receives one `PersisterReply`; `SlotComplete` has no reply. `SaveEnded` and `Notice`
are sent to the rank unasked. Between persisters: `CallerRun` in the handshake, then for each copy `CopyOffer`,
`OfferReply`, the bytes, `CopyEnd` and `CopyReply`. A message is one JSON object; the transports are `wire` and
`backup.handshake`.
"""

from __future__ import annotations

import msgspec

from slurm_robust.checkpoint.saving.shared.image import ImageSizes, Note

PROTOCOL = 3
"""Version of messages and images. It is part of the socket's name, so versions that differ never meet."""

# -- rank to persister ---------------------------------------------------------------------------------------------


class RankRequest(msgspec.Struct, kw_only=True, tag_field="t"):
    """A rank asks its persister; `PersisterLink.ask` fills in the folder of checkpoints and the rank."""

    directory: str = ""
    rank: int = -1


class SlotComplete(msgspec.Struct, frozen=True, tag_field="t", tag="go", omit_defaults=True):
    """A slot of the rank's image holds a complete copy."""


class AskHeldImage(RankRequest, tag="hello"):
    """Return the image that an earlier process of this rank left."""


class AllocateImage(RankRequest, tag="alloc"):
    """Allocate a new image."""

    total_bytes: int


class AdoptImage(RankRequest, tag="adopt"):
    """Take over this rank's image, whose descriptor comes along: the persister before this one has died."""


class AskNode(RankRequest, tag="node"):
    """Return the identity of this node's persister."""


class Listen(RankRequest, tag="listen"):
    """Listen for copies from other nodes, as persister `node` (empty: its own identity); port 0 means any."""

    node: str
    port: int


class AskInventory(RankRequest, tag="inventory"):
    """List all images of this folder of checkpoints."""


class AskImage(RankRequest, tag="image"):
    """Return the image of rank `of`, or the backup of it."""

    of: int
    backup: bool


class WriteSave(RankRequest, tag="persist"):
    """Write a save of rank `of` to the shared file system, even if its tiers do not ask for it."""

    of: int
    backup: bool
    save_id: str


class ReleaseOthers(RankRequest, tag="settle"):
    """A new run has begun: release images of ranks that are not on this node, and copies newer than the resumed save.

    Attributes:
        own: Ranks that run on this node now.
        backups: Ranks whose backups belong on this node.
        resumed: The save that the run loaded from memory; empty for none.
        step: The step that it continues from; -1 if nothing was loaded.
    """

    own: tuple[int, ...]
    backups: tuple[int, ...]
    resumed: str
    step: int


class ReserveBackup(RankRequest, tag="room"):
    """Reserve memory for the first or second (`turn` 0 or 1) backup of rank `of`, sent by persisters of this run."""

    of: int
    turn: int
    total_bytes: int
    run: str
    secret: str


class CheckBackupsFit(RankRequest, tag="fit"):
    """Check whether memory for these backups, (rank, bytes) each, is available on node `whose`; reserve nothing."""

    rooms: tuple[tuple[int, int], ...]
    whose: str


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address at which the persister of another node listens."""

    name: str
    node: str
    port: int
    addresses: tuple[str, ...]


class SetPeers(RankRequest, tag="peers"):
    """Send this rank's copies to these nodes from now on, and to no others."""

    peers: tuple[PeerAddress, ...]
    bytes_per_s: float
    run: str
    secret: str


FromRank = (
    SlotComplete | AskHeldImage | AllocateImage | AdoptImage | AskNode | Listen | AskInventory | AskImage | WriteSave
    | ReleaseOthers | ReserveBackup | CheckBackupsFit | SetPeers
)  # fmt: skip

# -- persister to rank ---------------------------------------------------------------------------------------------


class PersisterReply(msgspec.Struct, kw_only=True, tag_field="t"):
    """The answer to a `RankRequest`."""


class HeldImage(PersisterReply, tag="held"):
    """The descriptor of the held image comes along, if there is one."""


class ImageAllocated(PersisterReply, tag="allocated"):
    """The descriptor of the new image comes along."""


class ImageRefused(PersisterReply, tag="refused"):
    """The reply that no image was allocated."""

    why: str


class ImageAdopted(PersisterReply, tag="adopted"):
    """The image was taken over."""


class NodeIs(PersisterReply, tag="node"):
    """The identity of this node's persister."""

    node: str


class Listening(PersisterReply, tag="listen", omit_defaults=True):
    """The address at which other persisters can connect; `why` says why they cannot."""

    node: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    why: str = ""


class Inventory(PersisterReply, tag="inventory"):
    """(rank, whether it is a backup) of each image."""

    ranks: tuple[tuple[int, bool], ...]


class ImageIs(PersisterReply, tag="image"):
    """The descriptor of the image comes along, if there is one."""


class SaveOrdered(PersisterReply, tag="persist"):
    """Whether the save is in memory here, and is being written."""

    done: bool


class OthersReleased(PersisterReply, tag="settle"):
    """The reply that memory without a use was released."""


class BackupReserved(PersisterReply, tag="room"):
    """The reply why the memory was refused; empty if it is reserved."""

    why: str


class BackupsFit(PersisterReply, tag="fit"):
    """The reply why the memory is not available; empty if it is."""

    why: str


class PeersSet(PersisterReply, tag="peers"):
    """Copies are sent from now on."""


class SaveEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="ended"):
    """A save is sealed, or `failure` says why not."""

    step: int
    failure: str
    warning: str


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="word"):
    """A message for the rank's stderr."""

    text: str


Notification = SaveEnded | Notice
FromPersister = (
    HeldImage | ImageAllocated | ImageRefused | ImageAdopted | NodeIs | Listening | Inventory | ImageIs | SaveOrdered
    | OthersReleased | BackupReserved | BackupsFit | PeersSet | SaveEnded | Notice
)  # fmt: skip

# -- persister to persister ----------------------------------------------------------------------------------------


class CallerRun(msgspec.Struct, frozen=True):
    """The run that the calling persister belongs to."""

    run: str


class CopyOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A copy is about to be sent.

    Attributes:
        description: The `ImageDescription` of its image, as JSON text.
        sizes: The sizes of its image.
    """

    description: str
    sizes: ImageSizes
    number: int
    note: Note


class OfferReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`no` says why the copy is refused; `static`: send the metadata first, they are not here yet."""

    no: str = ""
    static: bool = False


class CopyEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a copy: all bytes were sent; if not `whole`, the slot was overwritten meanwhile."""

    digest: str
    whole: bool


class CopyReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The copy is kept, or `no` says why not."""

    no: str = ""
    kept: bool = False
