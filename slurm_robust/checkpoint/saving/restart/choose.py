"""Chooses the checkpoint that all ranks resume from, in memory or in files, and loads it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from slurm_robust.checkpoint.base import files, rollback_log
from slurm_robust.checkpoint.base.checkpoint_files import SEAL_NAME
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.resume import PATH_VARIABLE, resume_from_env
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import RankGroup
from slurm_robust.checkpoint.saving.rank.training_state import RNG, PerRank, collect, rank_key, restore
from slurm_robust.checkpoint.saving.restart import copy_choice, loading
from slurm_robust.checkpoint.saving.restart.held_images import HeldImages
from slurm_robust.checkpoint.saving.shared.image import Note
from slurm_robust.checkpoint.store import seals
from slurm_robust.checkpoint.store.demotion import demote, demotion
from slurm_robust.checkpoint.store.find import Found, latest


class Resume(NamedTuple):
    """The checkpoint that was chosen.

    Attributes:
        step: The step; None if there was no checkpoint.
        source: `files`, or the places of the shares (from `copy_choice.PLACES`), best first, joined by `+`; or empty.
        path: The checkpoint's folder, whether or not it was read.
        notes: Messages for the user: why other checkpoints were skipped, which state was not restored, where shares
            came from.
        save_id: The id of a save that came from memory.
    """

    step: int | None = None
    source: str = ""
    path: Path | None = None
    notes: tuple[str, ...] = ()
    save_id: str = ""


def resume(
    directory: Path,
    state: MutableMapping[str, Any],
    ranks: RankGroup,
    link: PersisterLink | None,
    *,
    local: str,
    rng: bool,
) -> Resume:
    """Choose, and load into `state`.

    Args:
        directory: Where checkpoints are written.
        state: The objects to load into.
        ranks: All ranks that load together.
        link: To this node's persister; None for none.
        local: The folder of these checkpoints on this node's own disk; empty for none.
        rng: Whether to load random generators, too.

    Raises:
        CheckpointError: the same on all ranks.
    """
    notes: list[str] = []
    holdings = HeldImages(directory, link, ranks, local)
    notes += holdings.notes
    try:
        found = _newest_files(directory, ranks, notes)
        choice = _best(holdings, found, directory, ranks, notes)
        if choice is not None:
            notes.append(copy_choice.description(choice))
            notes += load(state, _source(holdings, choice, ranks), ranks, rng=rng)
            _order_writes(holdings, choice, directory, ranks)
            path, source = directory / choice.note.folder, "+".join(choice.places)
            return Resume(choice.note.step, source, path, tuple(notes), choice.note.save_id)
        while found.path is not None:
            if _verified(found.path, ranks, notes):
                notes += load(state, loading.FileSource(found.path), ranks, rng=rng)
                return Resume(found.step, "files", found.path, tuple(notes))
            found = _newest_files(directory, ranks, notes, anew=True)
        return Resume(notes=tuple(notes))
    finally:
        holdings.close()


def load(
    state: MutableMapping[str, Any], source: loading.CheckpointSource, ranks: RankGroup, *, rng: bool
) -> list[str]:
    """Load into all objects of `state`; return a note of objects without a state in the checkpoint for this rank.

    Raises:
        CheckpointError: the checkpoint does not fit the state, or cannot be read; the error is the same on all ranks.
    """
    there = loading.names(source.metadata)
    collected = collect(state, ranks.rank, rng=rng)
    own = [rank_key(name, ranks.rank) for name, value in state.items() if isinstance(value, PerRank)]
    for key in [*own, *([rank_key(RNG, ranks.rank)] if rng else [])]:
        if key not in there:
            del collected[key]
    steps = loading.StateLoad(collected, source)
    missing: list[str] = []
    for step in (steps.plan, steps.read, lambda: missing.extend(restore(state, collected, ranks.rank, rng=rng))):
        failure = ""
        try:
            step()
        except (RuntimeError, ValueError, KeyError, TypeError, OSError, CheckpointError) as error:
            failure = f"{type(error).__name__}: {error}" if not isinstance(error, CheckpointError) else str(error)
        failures = [(rank, why) for rank, why in enumerate(ranks.gather(failure)) if why]
        if failures:
            rank, why = failures[0]
            raise CheckpointError(
                f"the checkpoint does not fit the state: rank {rank}: {why}",
                "Load it into the model that wrote it; the number of ranks and their layout may differ",
            )
    return [f"not restored, because a different number of ranks wrote it: {', '.join(missing)}"] if missing else []


# -- memory ------------------------------------------------------------------------------------------------------


def _best(
    holdings: HeldImages, found: Found, directory: Path, ranks: RankGroup, notes: list[str]
) -> copy_choice.Choice | None:
    """Return the newest complete and undamaged save in memory, if it is preferable to the files."""
    wrong: list[copy_choice.Share] = []
    while (choice := copy_choice.choose(holdings.shares, wrong)) is not None:
        if not ranks.broadcast(_admitted(choice.note, found, directory, notes) if ranks.rank == 0 else None):
            return None
        bad = holdings.wrong(choice)
        if not bad:
            return choice
        wrong += bad
        notes += [
            f"step {share.note.step}: the {share.place} of rank {share.rank} on {share.node} is damaged: "
            f"{'memory' if share.place in (copy_choice.MEMORY, copy_choice.BACKUP) else 'the disk'} is faulty"
            for share in bad
        ]
    return None


def _admitted(note: Note, found: Found, directory: Path, notes: list[str]) -> bool:
    """Rank 0: whether a save in memory is preferable to the files."""
    folder = directory / note.folder
    try:
        why = demotion(folder) or rollback_log.given_up(rollback_log.read(directory), note.step, note.saved_at_s)
    except CheckpointError as error:
        why = str(error)
    if why:
        notes.append(f"step {note.step} is in memory, and was skipped: {why}")
        return False
    # The path that srobust run exports may be relative to its working directory.
    return note.step > found.step or (found.path is not None and folder.resolve() == found.path.resolve())


def _source(holdings: HeldImages, choice: copy_choice.Choice, ranks: RankGroup) -> loading.MemorySource:
    owners = {share.file: holdings.reader(share) for share in choice.shares if share.file}
    reader = holdings.reader(choice.metadata)
    metadata = ranks.broadcast(holdings.metadata(choice.metadata) if ranks.rank == reader else b"", by=reader)
    here = {share.file: holdings.content(share) for share in choice.shares if share.file and holdings.is_here(share)}
    return loading.MemorySource(metadata, here, owners, ranks)


def _order_writes(holdings: HeldImages, choice: copy_choice.Choice, directory: Path, ranks: RankGroup) -> None:
    """Have a save that is not sealed written by the nodes that have it: memory may be lost next time."""
    unsealed = ranks.broadcast(not (directory / choice.note.folder / SEAL_NAME).exists() if ranks.rank == 0 else None)
    if unsealed and copy_choice.LOCAL not in choice.places:
        holdings.order_writes(choice)


# -- files -------------------------------------------------------------------------------------------------------


def _newest_files(directory: Path, ranks: RankGroup, notes: list[str], *, anew: bool = False) -> Found:
    """Return the choice of `srobust run`, else of rank 0; the same on all ranks."""
    found: Found | CheckpointError | None = None
    if ranks.rank == 0:
        try:
            # Without an exported choice, resume_from_env would use a collective of the training's group.
            chosen = bool(os.environ.get(PATH_VARIABLE)) and not anew
            found = resume_from_env(directory) if chosen else latest(directory)
        except CheckpointError as error:
            found = error
    found = ranks.broadcast(found)
    if isinstance(found, CheckpointError):
        raise found
    assert found is not None
    notes += [f"{path.name} was skipped: {why}" for path, why in found.passed_over]
    return found


def _verified(path: Path, ranks: RankGroup, notes: list[str]) -> bool:
    """Read every byte, each rank its share, and compare with the seal; a damaged checkpoint is demoted.

    Raises:
        CheckpointError: it is not sealed, or in another format.
    """
    seal = seals.read(path)
    if seal is None:
        raise CheckpointError(f"{path}: no seal: it was never verified", f"srobust ckpt latest {path.parent}")
    if not (path / ".metadata").exists():
        raise CheckpointError(
            f"{path}: not a torch.distributed.checkpoint",
            "Load it with the program that wrote it, or with checkpoint.load",
        )
    wrong = ""
    for file in seal.files[ranks.rank :: ranks.world_size]:
        try:
            digest = files.digest(path / file.name)
        except OSError as error:
            wrong = f"{file.name}: cannot be read: {error}"
            continue
        if digest != file.xxh3_128:
            wrong = f"{file.name}: xxh3-128 {digest}, sealed with {file.xxh3_128}"
    wrong = next((why for why in ranks.gather(wrong) if why), "")
    if not wrong:
        return True
    notes.append(f"{path.name} was skipped: {wrong}")
    failure = ""
    if ranks.rank == 0:
        try:
            demote(path, wrong)
        except CheckpointError as error:
            failure = str(error)
    if failure := ranks.broadcast(failure):
        raise CheckpointError(failure)
    return False
