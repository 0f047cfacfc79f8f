"""From which checkpoint all ranks go on, and where its bytes come from: memory, or files."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from slurm_robust.checkpoint import files, rollbacks, seals
from slurm_robust.checkpoint.demotion import demote, demotion
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.find import Found, latest
from slurm_robust.checkpoint.resume import PATH_VARIABLE, resume_from_env
from slurm_robust.checkpoint.saving import loading
from slurm_robust.checkpoint.saving.image import SLOTS, Image, Note
from slurm_robust.checkpoint.saving.link import Link
from slurm_robust.checkpoint.saving.planning import Ranks
from slurm_robust.checkpoint.saving.state import RNG, PerRank, collect, rank_key, restore


class Resume(NamedTuple):
    """What was chosen.

    Attributes:
        step: None where there was nothing to go on from.
        source: `memory`, `files`, or empty.
        path: The checkpoint's folder, whether or not anything of it was read.
        notes: What somebody should know: why others were passed over, what was not restored.
    """

    step: int | None = None
    source: str = ""
    path: Path | None = None
    notes: tuple[str, ...] = ()


class Offer(NamedTuple):
    """A complete copy in a rank's memory."""

    slot: int
    note: Note
    written_digest: bytes


class Held(NamedTuple):
    """What one rank has in memory; `digest` is that of all ranks' plans."""

    digest: str
    world_size: int
    file: str
    has_metadata: bool
    offers: tuple[Offer, ...]


def newest_everywhere(held: list[Held | None]) -> Note | None:
    """The newest save of which every rank has a complete copy; None where there is none. Decides; touches nothing."""
    if not held or any(one is None for one in held):
        return None
    all_held = [one for one in held if one is not None]
    if {(one.digest, one.world_size) for one in all_held} != {(all_held[0].digest, len(held))}:
        return None
    if not any(one.has_metadata for one in all_held):
        return None
    common = set.intersection(*({offer.note.save_id for offer in one.offers} for one in all_held))
    notes = [offer.note for offer in all_held[0].offers if offer.note.save_id in common]
    return max(notes, key=lambda note: (note.step, note.saved_at_s), default=None)


def resume(directory: Path, state: MutableMapping[str, Any], ranks: Ranks, link: Link | None, *, rng: bool) -> Resume:
    """Choose, and load into `state`.

    Raises:
        CheckpointError: the same on all ranks.
    """
    notes: list[str] = []
    image = _image(link, notes) if link is not None else None
    try:
        found = _on_disk(directory, ranks, notes)
        held = _held(image)
        everybody = ranks.gather(held)
        note = newest_everywhere(everybody)
        if note is not None:
            note = ranks.told(_admitted(note, found, directory, notes) if ranks.rank == 0 else None)
        if note is not None and image is not None and held is not None and _intact(image, held, note, ranks, notes):
            source = _memory(image, held, note, everybody, ranks)
            missing = load(state, source, ranks, rng=rng)
            return Resume(note.step, "memory", directory / note.folder, (*notes, *_told(missing)))
        while found.path is not None:
            if _verified(found.path, ranks, notes):
                missing = load(state, loading.Files(found.path), ranks, rng=rng)
                return Resume(found.step, "files", found.path, (*notes, *_told(missing)))
            found = _on_disk(directory, ranks, notes, anew=True)
        return Resume(notes=tuple(notes))
    finally:
        if image is not None:
            image.close()
            os.close(image.fd)


def load(state: MutableMapping[str, Any], source: loading.Source, ranks: Ranks, *, rng: bool) -> list[str]:
    """Load into all objects of `state`; names of what this rank had no state for.

    Raises:
        CheckpointError: the checkpoint does not fit the state, or cannot be read; the same on all ranks.
    """
    there = loading.names(source.metadata)
    collected = collect(state, ranks.rank, rng=rng)
    own = [rank_key(name, ranks.rank) for name, value in state.items() if isinstance(value, PerRank)]
    for key in [*own, *([rank_key(RNG, ranks.rank)] if rng else [])]:
        if key not in there:
            del collected[key]
    steps = loading.Loading(collected, source)
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
                f"the checkpoint does not fit the state that it is loaded into: rank {rank}: {why}",
                "Load it into the model that wrote it; the number of ranks and their layout may differ",
            )
    return missing


# -- memory ------------------------------------------------------------------------------------------------------


def _image(link: Link, notes: list[str]) -> Image | None:
    try:
        fd = link.held()
    except CheckpointError as error:
        notes.append(f"no memory of an earlier run: {error}")
        return None
    return Image(fd) if fd is not None else None


def _held(image: Image | None) -> Held | None:
    described = image.described() if image is not None else None
    if image is None or described is None:
        return None
    offers = []
    for slot in SLOTS:
        if (one := image.held(slot)) is not None:
            number, digest = image.finished(slot)
            offers.append(Offer(slot, one[1], digest if number == one[0] else b""))
    return Held(described.digest, described.world_size, described.file, bool(described.metadata_bytes), tuple(offers))


def _admitted(note: Note, found: Found, directory: Path, notes: list[str]) -> Note | None:
    """Rank 0: whether what is in memory is to be preferred to what is on the disk."""
    folder = directory / note.folder
    try:
        why = demotion(folder) or rollbacks.given_up(rollbacks.read(directory), note.step, note.saved_at_s)
    except CheckpointError as error:
        why = str(error)
    if why:
        notes.append(f"step {note.step} is in memory, and was passed over: {why}")
        return None
    # What srobust run exports may be relative to where it was called.
    same = found.path is not None and folder.resolve() == found.path.resolve()
    return note if note.step > found.step or same else None


def _intact(image: Image, held: Held, note: Note, ranks: Ranks, notes: list[str]) -> bool:
    """Compare with the digest that the persister took when it wrote the copy, where it has."""
    offer = next(one for one in held.offers if one.note.save_id == note.save_id)
    described = image.described()
    assert described is not None
    wrong = 0
    if any(offer.written_digest) and described.file_bytes:
        content = image.slot(offer.slot)[: described.file_bytes]
        wrong = int(xxhash.xxh3_128_digest(content) != offer.written_digest)
    (wrong,) = ranks.most(wrong)
    if wrong:
        notes.append(
            f"step {note.step} is in memory, and its bytes changed since they were written: memory is at fault"
        )
    return not wrong


def _memory(image: Image, held: Held, note: Note, everybody: list[Held | None], ranks: Ranks) -> loading.Memory:
    offer = next(one for one in held.offers if one.note.save_id == note.save_id)
    owners = {one.file: rank for rank, one in enumerate(everybody) if one is not None and one.file}
    told_by = next(rank for rank, one in enumerate(everybody) if one is not None and one.has_metadata)
    metadata = ranks.told(bytes(image.metadata) if ranks.rank == told_by else b"", by=told_by)
    here = {held.file: image.slot(offer.slot)} if held.file else {}
    return loading.Memory(metadata, here, owners, ranks)


# -- files -------------------------------------------------------------------------------------------------------


def _on_disk(directory: Path, ranks: Ranks, notes: list[str], *, anew: bool = False) -> Found:
    """What `srobust run` chose, or what rank 0 finds; the same on all ranks."""
    told: Found | CheckpointError | None = None
    if ranks.rank == 0:
        try:
            # Without an exported choice, resume_from_env would have all ranks meet in a group of the training's.
            chosen = PATH_VARIABLE in os.environ and not anew
            told = resume_from_env(directory) if chosen else latest(directory)
        except CheckpointError as error:
            told = error
    told = ranks.told(told)
    if isinstance(told, CheckpointError):
        raise told
    assert told is not None
    notes += [f"{path.name} was passed over: {why}" for path, why in told.passed_over]
    return told


def _verified(path: Path, ranks: Ranks, notes: list[str]) -> bool:
    """Read every byte, each rank its share, and compare with the seal; one that does not fit is demoted.

    Raises:
        CheckpointError: nobody sealed it, or another program's format is behind the seal.
    """
    seal = seals.read(path)
    if seal is None:
        raise CheckpointError(f"{path}: no seal, nobody verified it", f"srobust ckpt latest {path.parent}")
    if not (path / ".metadata").exists():
        raise CheckpointError(
            f"{path}: no torch.distributed.checkpoint", "Load it with the program that wrote it: checkpoint.load, say"
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
    notes.append(f"{path.name} was passed over: {wrong}")
    failure = ""
    if ranks.rank == 0:
        try:
            demote(path, wrong)
        except CheckpointError as error:
            failure = str(error)
    if failure := ranks.told(failure):
        raise CheckpointError(failure)
    return False


def _told(missing: list[str]) -> list[str]:
    if not missing:
        return []
    return [f"not restored, since another number of ranks wrote it: {', '.join(missing)}"]
