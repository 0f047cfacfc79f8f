"""Defines the only exception of this folder: it says why there is no hint, or no rule, with a sentence for people."""


class HintError(Exception):
    """The hint or rule cannot be had; the message says why."""
