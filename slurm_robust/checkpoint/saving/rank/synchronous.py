"""Writes a save in the step, without buffers: every rank its file, then rank 0 the seal."""

from __future__ import annotations

import time
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


def write(
    directory: Path, ranks: RankGroup, plan: SavePlan, note: Note, contents: list[torch.Tensor | bytes], *, keep: int
) -> tuple[str, str]:
    """Write and seal a save, and keep the newest `keep` (0: all); all ranks call it.

    Returns:
        Why that failed, the same on all ranks, empty if it is sealed; and a warning.
    """
    folder, failure, warning = directory / note.folder, "", ""
    try:
        found = [file_writer.write_file(folder, plan.file, pieces_of(plan.layout, contents))] if plan.file else []
        if ranks.rank == 0:
            found.append(file_writer.write_file(folder, file_writer.METADATA, [memoryview(plan.metadata)]))
        file_writer.note_part(folder, file_writer.RankPart(save_id=note.save_id, rank=ranks.rank, files=tuple(found)))
    except CheckpointError as error:
        failure = str(error)
    failure = next((why for why in ranks.gather(failure) if why), "")
    if not failure and ranks.rank == 0:
        until_s = time.monotonic() + _SEAL_S
        try:
            file_writer.seal_when_complete(folder, note, ranks.world_size, lambda: time.monotonic() > until_s)
            warning = file_writer.retain(directory, keep)
        except CheckpointError as error:
            failure = str(error)
    return ranks.broadcast(failure), warning
