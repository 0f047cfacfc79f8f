"""Defines the messages about a rank whose main process is stopped by a signal."""

from __future__ import annotations

from typing import NamedTuple


class ContinueRank(NamedTuple):
    """Continue the main process of this rank (SIGCONT), if the process is still stopped and not traced."""

    node: str
    rank: int
    pid: int


class RankContinued(NamedTuple):
    """The answer to `ContinueRank`; `refused` says why the process was not continued, and is empty if it was."""

    node: str
    rank: int
    pid: int
    refused: str = ""
