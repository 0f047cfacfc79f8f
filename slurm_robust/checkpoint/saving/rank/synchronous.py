"""Writes a save in the step, without buffers: every rank its file, then rank 0 the seal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup, SavePlan
from slurm_robust.checkpoint.saving.shared import file_writer
from slurm_robust.checkpoint.saving.shared.file_layout import pieces_of
from slurm_robust.checkpoint.saving.shared.image import Note

if TYPE_CHECKING:
    import torch

_SEAL_S = 60.0
"""Wait for a network file system to show rank 0 the other ranks' files."""


class SynchronousWriter:
    """Writes for one directory; all ranks call it.

    Args:
        directory: Of the checkpoints.
        ranks: All ranks that save together.
        keep: Sealed checkpoints to keep; 0 for all.
        log: Called with warnings.
    """

    def __init__(self, directory: Path, ranks: RankGroup, keep: int, log: Callable[[str], None]) -> None:
        self.directory, self.ranks, self.keep, self._log = directory, ranks, keep, log

    def write(self, plan: SavePlan, note: Note, contents: list[torch.Tensor | bytes]) -> str:
        """Write and seal a save; why that failed, the same on all ranks, empty if it is sealed."""
        folder, failure = self.directory / note.folder, ""
        try:
            found = [file_writer.write_file(folder, plan.file, pieces_of(plan.layout, contents))] if plan.file else []
            if self.ranks.rank == 0:
                found.append(file_writer.write_file(folder, file_writer.METADATA, [memoryview(plan.metadata)]))
            file_writer.note_part(
                folder, file_writer.RankPart(save_id=note.save_id, rank=self.ranks.rank, files=tuple(found))
            )
        except CheckpointError as error:
            failure = str(error)
        failure = next((why for why in self.ranks.gather(failure) if why), "")
        if failure:
            return failure
        sealing_failure: str = self.ranks.broadcast(self._seal(folder, note) if self.ranks.rank == 0 else "")
        return sealing_failure

    def _seal(self, folder: Path, note: Note) -> str:
        try:
            until_s = time.monotonic() + _SEAL_S
            file_writer.seal_when_complete(
                folder, note.save_id, note.step, self.ranks.world_size, lambda: time.monotonic() > until_s
            )
        except CheckpointError as error:
            return str(error)
        try:
            if self.keep:
                file_writer.retain(self.directory, self.keep)
        except CheckpointError as error:
            self._log(f"old checkpoints are not removed: {error}")
        return ""
