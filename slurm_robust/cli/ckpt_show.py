"""What `srobust ckpt` shows to people: progress bars, a table, sizes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_robust import checkpoint
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.files import OnBytes
from slurm_robust.checkpoint.seals import base, contents


@contextlib.contextmanager
def bar(path: Path, doing: str, *, quiet: bool = False) -> Iterator[OnBytes | None]:
    """A progress bar on stderr where a person watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 (scripts and prologs need not pay for it)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    total = 0
    with contextlib.suppress(OSError, CheckpointError):
        total = sum((base(path) / name).stat().st_size for name in contents(path))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        advance: Callable[..., None] = progress.advance
        yield lambda size_bytes: advance(task, size_bytes)


def print_table(found: list[checkpoint.Entry]) -> None:
    """A row for each, on stdout."""
    from rich.console import Console  # noqa: PLC0415 (as in bar)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("STEP", justify="right")
    table.add_column("SIZE", justify="right")
    table.add_column("WRITTEN")
    table.add_column("STATE")
    table.add_column("PATH", overflow="fold")
    for entry in found:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created_at_s)) if entry.sealed else "-"
        taken = size(entry.size_bytes) if entry.sealed else "-"
        table.add_row(str(entry.step), taken, written, entry.problem or "sealed, unchanged", str(entry.path))
    # Lines are not to be broken for a pipe that has no width.
    Console(width=None if sys.stdout.isatty() else 1000).print(table, markup=False)


def size(size_bytes: float) -> str:
    """`3.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
