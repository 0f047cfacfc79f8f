"""What can go wrong with a checkpoint, said so that the reader knows what to type next."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or trusted.

    Attributes:
        what: What happened, and to which file.
        remedy: What to type or to look at next; empty where there is nothing better than the first part.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}" if remedy else what)
