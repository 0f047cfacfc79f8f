"""Tells which back end is in use, its versions, and which calls it leaves to Slurm's commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Detour(NamedTuple):
    """A call that goes by Slurm's command though pyslurm is used; always, or in the case that `when` tells."""

    call: str
    why: str
    when: str = ""


@dataclass(frozen=True)
class BackEnd:
    """The back end in use.

    Attributes:
        name: `commands` or `pyslurm`.
        version: pyslurm's own, empty if it is not used or cannot be imported.
        slurm: The version of Slurm's commands here, empty if unknown.
        problem: Why pyslurm is not used at all; empty if it is, or was not chosen.
        by_command: The calls that go by Slurm's commands though pyslurm is used.
        lacking: Further such calls, because this pyslurm unexpectedly lacks a name, or failed in the call.
    """

    name: str
    version: str = ""
    slurm: str = ""
    problem: str = ""
    by_command: tuple[Detour, ...] = ()
    lacking: tuple[Detour, ...] = ()
