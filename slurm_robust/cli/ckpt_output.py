"""Prints the answers of `srobust ckpt`: progress bars, a table, JSON, errors and their exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from slurm_robust import checkpoint
from slurm_robust.checkpoint.base.checkpoint_files import base, contents
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.store.structure import is_checkpoint
from slurm_robust.cli.table import plain

EXIT_NOT_VERIFIED = 1
EXIT_COULD_NOT_TELL = 3
EXITS = (
    (0, "done, verified, found"),
    (1, "not verified, damaged, none found"),
    (2, "wrong usage"),
    (3, "could not tell: something cannot be read or written, or has no seal and an unknown format"),
)
PATH = click.argument("path", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, for tools.")


@contextlib.contextmanager
def progress_bar(path: Path, doing: str, *, quiet: bool = False) -> Iterator[OnBytes | None]:
    """Show a progress bar on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 (scripts do not need it)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    total = 0
    with contextlib.suppress(OSError, CheckpointError):
        total = sum((base(path) / name).stat().st_size for name in contents(path))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        advance: Callable[..., None] = progress.advance
        yield lambda size_bytes: advance(task, size_bytes)


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Print errors as one line on stderr; exit 1 for a bad checkpoint, 3 for one that cannot be read or written."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        print_line(f"srobust ckpt: {error}", err=True)
        unread = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        sys.exit(EXIT_COULD_NOT_TELL if unread else EXIT_NOT_VERIFIED)


def is_one_checkpoint(directory: Path) -> bool:
    """Return whether `directory` is one checkpoint, not a folder of them."""
    try:
        return directory.is_dir() and is_checkpoint(directory)
    except OSError:
        return False


def where_to_look(directory: Path) -> str:
    """Return what to type if there is no checkpoint to choose."""
    if is_one_checkpoint(directory):
        return f"this folder is a checkpoint itself: srobust ckpt latest {directory.absolute().parent}"
    return f"srobust ckpt list {directory}"


def print_line(line: str, *, err: bool = False) -> None:
    """Print one line for people; control characters in names are escaped."""
    click.echo(plain(line), err=err)


def print_path(path: Path) -> None:
    """Print a path alone on its line, for scripts: byte for byte."""
    click.echo(os.fsencode(path))


def print_json(value: Any) -> None:
    """Print one object, for tools; bytes of names that are not UTF-8 are escaped, since JSON cannot contain them."""
    click.echo(msgspec.json.encode(_text(msgspec.to_builtins(value, enc_hook=os.fspath))).decode())


def reasons(found: Iterable[tuple[Path, str]]) -> list[dict[str, Any]]:
    """Return a list of paths and why, for `print_json`."""
    return [{"path": path, "why": why} for path, why in found]


def _text(value: Any) -> Any:
    """Return the value with valid UTF-8 strings only."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, (list, tuple)):
        return [_text(one) for one in value]
    return {key: _text(one) for key, one in value.items()} if isinstance(value, dict) else value


def print_table(found: list[checkpoint.Entry]) -> None:
    """Print a row for each, on stdout."""
    from rich.console import Console  # noqa: PLC0415 (as in bar)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("STEP", justify="right")
    table.add_column("SIZE", justify="right")
    table.add_column("WRITTEN")
    table.add_column("STATE")
    table.add_column("PATH", overflow="fold")
    for entry in found:
        written = _when(entry.created_at_s) if entry.sealed else "-"
        taken = _size(entry.size_bytes) if entry.sealed else "-"
        state = plain(entry.problem) or "sealed, unchanged"
        table.add_row(str(entry.step), taken, written, state, plain(entry.path))
    # A pipe has no width: do not wrap lines.
    Console(width=None if sys.stdout.isatty() else 1000).print(table, markup=False)


def _when(at_s: float) -> str:
    """Local date and time; `?` if out of range."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    except (OverflowError, OSError, ValueError):
        return "?"


def _size(size_bytes: float) -> str:
    """Return a size as `3.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def extent(sealed: checkpoint.Seal) -> str:
    """Return the extent as `3 files, 3.4 GiB`."""
    count = len(sealed.files)
    return f"{count} file{'' if count == 1 else 's'}, {_size(sum(file.size_bytes for file in sealed.files))}"
