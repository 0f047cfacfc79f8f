"""Defines the error of this package: what happened, and what to type next."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or trusted.

    Attributes:
        what: What happened, and to which file.
        remedy: What to type or to check next; empty if there is nothing to add.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}" if remedy else what)
