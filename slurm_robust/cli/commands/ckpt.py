"""`srobust ckpt`: seal, verify, list, choose and prune checkpoints."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
import msgspec

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.structure import UNDETERMINED, is_checkpoint
from slurm_robust.cli import ckpt_output as out
from slurm_robust.cli.commands import ckpt_seal
from slurm_robust.cli.teaching import lesson

_VERIFY = ("srobust ckpt verify ckpt", "read back every checkpoint of a folder")
_LATEST = ("srobust ckpt latest ckpt", "the path to resume from, on stdout")
_LIST = ("srobust ckpt list ckpt", "newest first, with their problems")
_PRUNE = ("srobust ckpt prune ckpt --keep 3 --dry-run", "what would be removed")

_UNREAD = "cannot be read:"
"""Begins a problem that proves no damage."""
_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group(epilog=lesson([ckpt_seal.ONE, ckpt_seal.ALL, _VERIFY, _LATEST, _LIST, _PRUNE], out.EXITS))
def command() -> None:
    """Seal, verify and choose checkpoints, outside of any job.

    A checkpoint is a folder or a single file. Its seal (seal.json) holds the size and xxh3-128 digest of every file;
    one without a seal is never chosen.
    """


command.add_command(ckpt_seal.command, "seal")


@command.command(epilog=lesson([_VERIFY], out.EXITS))
@out.PATH
@click.option("--values", is_flag=True, help="Search the tensors for NaN and Inf, too.")
@out.JSON
def verify(path: Path, values: bool, as_json: bool) -> None:
    """Read every byte of a checkpoint and compare it with its seal.

    Without a seal only its structure is checked, and the output says so: CRCs, headers, bounds, shards of every rank,
    for files of torch.save and safetensors, torch.distributed.checkpoint, Megatron-LM, DeepSpeed, Lightning and HF
    Trainer. For a folder of checkpoints all of them and the framework's tracker are verified; `step` is then that of
    the newest that is sealed and verified.
    """
    with out.errors_reported(), out.progress_bar(path, "verifying") as on_bytes:
        report = _verify_all(path, values, on_bytes)
    # A known problem counts, even if other files cannot be read.
    unread = not report.verified and all(problem.what.startswith(_UNREAD) for problem in report.problems)
    unknown = not report.verified and all(
        problem.what.startswith((_UNREAD, UNDETERMINED)) for problem in report.problems
    )
    strange = report.verified and not report.sealed and not report.formats
    if as_json:
        out.print_json(report)
    else:
        how = (
            "every byte matches its seal"
            if report.sealed
            else "no seal: only the structure was checked, no problem found"
        )
        formats = f" ({', '.join(report.formats)})" if report.formats else ""
        wrong = "could not tell" if unknown else "NOT verified"
        wrong += ": check permissions, mounts and the disk (srobust check)" if unread else ""
        if strange:
            how = "could not tell: unknown format and no seal; if you know that it is complete: "
            how += f"srobust ckpt seal {shlex.quote(report.path)}"
        out.print_line(f"{report.path}{formats}: " + (how if report.verified else wrong))
        for problem in report.problems:
            out.print_line(f"  {problem.file or '(checkpoint)'}: {problem.what}")
    if unknown or strange:
        sys.exit(out.EXIT_COULD_NOT_TELL)
    sys.exit(0 if report.verified else out.EXIT_NOT_VERIFIED)


@command.command(epilog=lesson([_LATEST], out.EXITS))
@_DIRECTORY
@click.option("--deep", is_flag=True, help="Read back every byte that was not read since it was sealed.")
@click.option("--unsealed", is_flag=True, help="Accept one without a seal if its structure is intact.")
@click.option("--pin", is_flag=True, help="Make the framework's own tracker file point at it.")
@click.option(
    "--healthy", is_flag=True, help="Only one with good loss and gradient norm, up to it and for a while after."
)
@out.JSON
def latest(directory: Path, *, deep: bool, unsealed: bool, pin: bool, healthy: bool, as_json: bool) -> None:
    """Print the newest checkpoint to resume from, and why newer ones were skipped.

    With --pin, latest_checkpointed_iteration.txt (Megatron-LM), latest (DeepSpeed) or the link last.ckpt (Lightning)
    is made to point at it. With --healthy, for going back after a loss spike, the program has to record its loss
    (progress.step, Checkpointer.observe, checkpoint.HealthLog); the batches to skip are printed, too.
    """
    if healthy and unsealed:
        raise click.UsageError("--healthy chooses among sealed checkpoints: remove --unsealed")
    with out.errors_reported(), out.progress_bar(directory, "reading", quiet=not (deep or unsealed)) as on_bytes:
        skip = None
        if healthy:
            found, skip = checkpoint.latest_healthy(directory, deep=deep, on_bytes=on_bytes)
        else:
            found = checkpoint.latest(directory, deep=deep, unsealed=unsealed, remember=False, on_bytes=on_bytes)
        pinned = checkpoint.pin(directory, found.path) if pin and found.path else []
        trackers = checkpoint.trackers(directory)
    if as_json:
        out.print_json(
            {
                "path": found.path,
                "step": found.step,
                "sealed": found.sealed,
                "pinned": pinned,
                "passed_over": out.reasons(found.passed_over),
                "skip": skip,
            }
        )
    else:
        for path, why in found.passed_over:
            out.print_line(f"skipped {path}: {why}", err=True)
        for tracker in trackers:
            if tracker.problem or (found.path and tracker.target != found.path):
                what = tracker.problem or f"points at {tracker.target}, not at this one"
                out.print_line(f"{directory / tracker.name}: {what}; --pin makes it point at this one", err=True)
        if found.path and not found.sealed:
            out.print_line("no seal: only its structure was checked", err=True)
        if skip is not None:
            out.print_line(f"skip the batches of steps {skip.first_step} to {skip.last_step}", err=True)
        if found.path:
            out.print_path(found.path)
        else:
            out.print_line(f"{directory}: no checkpoint to resume from; {out.where_to_look(directory)}", err=True)
    sys.exit(0 if found.path else out.EXIT_NOT_VERIFIED)


@command.command("list", epilog=lesson([_LIST], out.EXITS))
@_DIRECTORY
@out.JSON
def list_(directory: Path, as_json: bool) -> None:
    """List the checkpoints of a folder, newest first."""
    with out.errors_reported():
        found = checkpoint.entries(directory)
    if as_json:
        out.print_json({"directory": directory, "checkpoints": found})
        return
    if not found:
        where = f"; {out.where_to_look(directory)}" if out.is_one_checkpoint(directory) else ""
        where = where or ("" if directory.exists() else "; there is no such folder")
        out.print_line(f"{directory}: no checkpoints{where}")
        return
    out.print_table(found)


@command.command(epilog=lesson([_PRUNE], out.EXITS))
@_DIRECTORY
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Verified checkpoints to keep.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, remove nothing.")
@out.JSON
def prune(directory: Path, keep: int, dry_run: bool, as_json: bool) -> None:
    """Keep the newest N verified checkpoints and remove what is older.

    With fewer verified ones than N nothing is removed. Checkpoints that may still be being written, and the target of
    the framework's tracker, are kept.
    """
    with out.errors_reported(), out.progress_bar(directory, "reading") as on_bytes:
        done = checkpoint.prune(directory, keep, dry_run=dry_run, on_bytes=on_bytes)
    if as_json:
        out.print_json({"kept": done.kept, "removed": done.removed, "left": out.reasons(done.left), "dry_run": dry_run})
        return
    for path in done.kept:
        out.print_line(f"kept     {path}")
    for path, why in done.left:
        out.print_line(f"left     {path}: {why}")
    for path in done.removed:
        out.print_line(f"{'would remove' if dry_run else 'removed '} {path}")


def _verify_all(path: Path, values: bool, on_bytes: OnBytes | None) -> checkpoint.VerificationReport:
    """Return the report of one checkpoint, or one report for all checkpoints of a folder."""
    inside = [] if _is_checkpoint(path) else checkpoint.entries(path)
    tracked = checkpoint.trackers(path) if path.is_dir() else []
    if not inside:
        report = _verify(path, values, on_bytes)
        lost = tuple(checkpoint.Problem(one.name, one.problem) for one in tracked if one.problem)
        return msgspec.structs.replace(
            report, verified=report.verified and not lost, problems=(*report.problems, *lost)
        )
    reports = [(entry.path.name, _verify(entry.path, values, on_bytes)) for entry in inside]
    problems = [
        checkpoint.Problem(f"{name}/{problem.file}".rstrip("/"), problem.what)
        for name, report in reports
        for problem in report.problems
    ]
    problems += [checkpoint.Problem(tracker.name, tracker.problem) for tracker in tracked if tracker.problem]
    return checkpoint.VerificationReport(
        path=str(path),
        verified=not problems,
        sealed=all(report.sealed for _, report in reports),
        step=max((report.step for _, report in reports if report.verified and report.sealed), default=-1),
        problems=tuple(problems),
        world_size=max(report.world_size for _, report in reports),
        formats=tuple(dict.fromkeys(name for _, report in reports for name in report.formats)),
    )


def _is_checkpoint(path: Path) -> bool:
    """Return whether `path` itself is a checkpoint; one that cannot be read counts as such, and is reported."""
    try:
        return is_checkpoint(path)
    except OSError:
        return True


def _verify(path: Path, values: bool, on_bytes: OnBytes | None) -> checkpoint.VerificationReport:
    """Return the report of one checkpoint: an unreadable file is a problem in it, a missing checkpoint an error."""
    try:
        return checkpoint.verify(path, values=values, on_bytes=on_bytes)
    except OSError as error:
        what = str(error)
    except CheckpointError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        what = error.what
    problem = checkpoint.Problem("", f"{_UNREAD} {what}")
    return checkpoint.VerificationReport(path=str(path), verified=False, sealed=False, step=-1, problems=(problem,))
