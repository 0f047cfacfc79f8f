"""Writes the page of a command whole or not at all, with an error that says which file failed and why."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import click

from slurm_robust.wire import whole_file


def write_page(path: Path, text: str) -> None:
    """Write the page, so that who reads it at that moment reads the old one or the new one."""
    try:
        if _kept(path):
            with path.open("w", encoding="utf-8") as there:
                there.write(text)
            return
        whole_file.write(path, text.encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise click.ClickException(
            f"{path} was not written: {why}. Name a file in a folder that you may write"
        ) from None


def _kept(path: Path) -> bool:
    """Return whether to write into what is there: a link, a device or a pipe of the caller's or root's.

    A rename onto /dev/null or /dev/stdout would replace that device for everyone. Links and pipes of other users are
    never written into: they are replaced, or the error says that they cannot be.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())


def local_offset_s(at_s: float) -> int:
    """Return this machine's time minus UTC."""
    return time.localtime(at_s).tm_gmtoff
