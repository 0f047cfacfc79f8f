"""A rank's two buffers: allocated once, written alternately, given to a new persister if the old one has died."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank import copying, deferred_copies, gpu_copies
from slurm_robust.checkpoint.saving.rank.copying import Pairs
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup, SavePlan
from slurm_robust.checkpoint.saving.shared.file_layout import FileLayout, views
from slurm_robust.checkpoint.saving.shared.file_writer import reached
from slurm_robust.checkpoint.saving.shared.image import SLOTS, Image, ImageDescription, Note, sizes
from slurm_robust.checkpoint.saving.shared.messages import AllocateImage, ImageRefused, PersisterReply

_POLL_S = 0.005
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


def keeps_metadata(rank: int) -> bool:
    """Return whether this rank's image holds DCP's `.metadata`: one rank of each node is enough."""
    local = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), "0")
    return rank == 0 or local == "0"


class Retention(NamedTuple):
    """The number of saves to keep: sealed, and on the own disk of the node (`local`, empty for none); 0 for all."""

    keep: int
    local: str = ""
    keep_local: int = 0


class Buffers:
    """The image of this rank, on the training's side.

    Raises:
        CheckpointError: the memory is refused, or no persister answers.
    """

    def __init__(self, link: PersisterLink, plan: SavePlan, world_size: int, retention: Retention) -> None:
        self.link, self.layout = link, plan.layout
        metadata = plan.metadata if keeps_metadata(link.rank) else b""
        description = ImageDescription(
            directory=str(link.directory),
            rank=link.rank,
            world_size=world_size,
            file=plan.file,
            file_bytes=plan.layout.file_bytes,
            metadata_bytes=len(metadata),
            digest=plan.digest,
            keep=retention.keep,
            local=retention.local,
            keep_local=retention.keep_local,
        )
        made = sizes(
            4096 + 6 * len(str(link.directory)) + 6 * len(retention.local) + len(metadata), plan.layout.file_bytes
        )
        fd = link.held_image()
        image = Image(fd, populate=True) if fd is not None else None
        if image is not None and image.described() != description:
            image.close()
            os.close(image.fd)
            image = None
        if image is None:
            reply, fds = link.ask(AllocateImage(total_bytes=made.total_bytes), PersisterReply)
            if isinstance(reply, ImageRefused):
                raise CheckpointError(
                    reply.why,
                    "Give the job more memory (--mem), or write without buffers: Checkpointer(asynchronous=False)",
                )
            image = Image(fds[0], populate=True)
            image.describe(made, description, metadata)
        self.image = image
        self.backups = 0
        """The number of other nodes on which copies are kept, too."""
        self.number = image.newest()
        self._targets = [self._prepared(plan.layout, slot) for slot in SLOTS]
        self._deferred: tuple[int, Note, deferred_copies.DeferredCopies] | None = None

    def _prepared(self, layout: FileLayout, slot: int) -> list[torch.Tensor | memoryview]:
        """Return the views to copy into; every page of an empty slot is touched now, so that no step pays for it."""
        view = self.image.slot(slot)
        if self.image.held(slot) is None and layout.file_bytes:
            torch.frombuffer(view, dtype=torch.uint8).zero_()
        return views(layout, view)

    def next_slot(self) -> int:
        """Return the slot to copy into next: the empty one, or the one with the older copy."""
        held = [found[0] if (found := self.image.held(slot)) else 0 for slot in SLOTS]
        return held.index(min(held))

    def busy(self) -> bool:
        """Return whether the next slot is still being written, or the other one is not yet kept on the other nodes."""
        return not (self.image.free(self.next_slot()) and self.safe())

    def safe(self) -> bool:
        """Tell whether all live backup nodes have the newest copy, so that the one before it may be overwritten."""
        return all(self.image.sent(slot, self.backups) for slot in SLOTS)

    def wait_free(self) -> None:
        """Wait until `busy` is False; replaces a persister that dies meanwhile."""
        while self.busy():
            self.ensure_alive()
            time.sleep(_POLL_S)

    def wait(
        self, ranks: RankGroup, receive: Callable[[float], None], until_s: float = math.inf, *, written: bool = False
    ) -> str:
        """Wait until no rank's next buffer is in use, and all newest copies are kept on other nodes; all ranks call it.

        Meanwhile each replaces its own persister if that has died.

        Args:
            ranks: All ranks that save together.
            receive: Reads the persister's notifications, and waits at most so long for the first.
            until_s: CLOCK_MONOTONIC; the first rank to reach it ends the wait for all.
            written: Wait until all copies are written, too.

        Returns:
            Why this rank's buffers cannot be waited for; empty if they can.
        """

        def pending() -> bool:
            return bool(self.image.due()) or not self.safe() if written else self.busy()

        waits, failure, pause_s = pending(), "", _FIRST_PAUSE_S
        while True:
            waiting, late = ranks.maximum(int(waits), int(time.monotonic() > until_s))
            if late or not waiting:
                return failure
            receive(pause_s)
            try:
                self.ensure_alive()  # even if only other ranks wait: they may be sending to this node
                waits, failure = pending(), ""
            except CheckpointError as error:
                waits, failure = False, str(error)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def ensure_alive(self) -> None:
        """Give the image to a new persister if the old one is gone. Raises CheckpointError if none can be started."""
        if self.link.alive and self.link.slot_complete():
            return
        self.link.adopt(self.image.fd)

    def register(self) -> str:
        """Register the slots with the GPUs' driver, for copies at full speed; why that failed, empty if it did not."""
        return gpu_copies.register(self, self.image.slots)

    def copy(self, tensors: Sequence[torch.Tensor | bytes], note: Note, may_wait: Sequence[bool] | None = None) -> None:
        """Copy a state into the next slot, and notify the persister.

        Args:
            tensors: In the order of the layout's items.
            note: The save that they are of.
            may_wait: For each whether its copy may last until `finish`, which must be called before it changes.
                None: all are copied before this returns.

        Raises:
            CheckpointError: no persister can be started any more; the copy is complete nevertheless.
        """
        self.finish()
        slot = self.next_slot()
        reached("slot chosen")
        self.image.begin(slot)
        reached("slot void")
        now: Pairs = ([], [])
        later: Pairs = ([], [])
        waits = may_wait or [False] * len(tensors)
        for target, content, wait in zip(self._targets[slot], tensors, waits, strict=True):
            if isinstance(target, memoryview):
                assert isinstance(content, bytes)
                target[: len(content)] = content
            else:
                assert isinstance(content, torch.Tensor)
                into, out = later if wait else now
                into.append(target)
                out.append(content)
        reached("values copied")
        if all(source.device.type == "cpu" for source in now[1]):
            copying.copy(*now, copying.threads_here(), lambda: reached("half copied"))
        else:
            for going in deferred_copies.start(*now):
                going.wait()
        if later[0]:
            # Last: if the rest cannot be copied, nothing may complete the slot or still write into it.
            self._deferred = slot, note, deferred_copies.DeferredCopies(*later)
        else:
            self._complete(slot, note)

    @property
    def copying(self) -> Note | None:
        """The save that is still being copied; None if none is."""
        return self._deferred[1] if self._deferred is not None else None

    def finish(self) -> None:
        """Wait for a copy that is still running, and notify the persister.

        Raises:
            CheckpointError: the tensors changed meanwhile, so the copy is discarded; or as `copy`.
        """
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            slot, note, going = deferred
            going.finish()
            self._complete(slot, note)

    def _complete(self, slot: int, note: Note) -> None:
        reached("all copied")
        self.number += 1
        self.image.commit(slot, self.number, note)
        reached("slot complete")
        self.ensure_alive()
        reached("persister told")
