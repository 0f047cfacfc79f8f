"""Names what can repair a node without a person, and the tag at the end of a drain reason that says so.

The node's own check finds the fault and reads the driver's words, so it knows the remedy best. So the remedy
stands in the drain's reason, `srobust: XID 79 (…) on GPU 0000:9b:00 [repair reboot]`: it survives a lost journal and
comes from nodes without a daemon, too; and a person who writes another reason has taken it away. A reason without a tag
has no remedy. Standard library only; nothing here acts.
"""

from __future__ import annotations

import enum
import re

from slurm_robust.core.text import shortened


class Remedy(str, enum.Enum):
    """What to do to a node. A later value includes what the earlier value does."""

    GPU_RESET = "gpu_reset"
    """A reset of all GPUs of the node, and of the switches between them."""
    REBOOT = "reboot"
    """The node is rebooted."""

    @property
    def words(self) -> str:
        """Return the remedy's name for people."""
        return self.value.replace("_", " ").replace("gpu", "GPU")


_TAG = re.compile(r"\s*\[repair ([a-z_]{1,20})\](?= \[job \d{1,10}\]\Z|\Z)")
_ANY_TAG = re.compile(r"\s*\[repair [a-z_]{1,20}\]")


def tag(remedy: Remedy) -> str:
    """Return the tag, `[repair reboot]`."""
    return f"[repair {remedy.value}]"


def tagged(text: str, remedy: Remedy | None, limit_chars: int) -> str:
    """Return the text with its tag, in so many characters: the tag stays whole, and other tags in the text go."""
    plain = _ANY_TAG.sub("", text)
    if remedy is None:
        return shortened(plain, limit_chars)
    end = f" {tag(remedy)}"
    return shortened(plain, limit_chars - len(end)) + end


def named(word: str) -> Remedy | None:
    """Return the remedy of this name; None if the name is not known."""
    return next((known for known in Remedy if known.value == word), None)


def remedy_of(reason: str) -> Remedy | None:
    """Return the remedy that this text names at its end, before a job's tag; None if it names none that is known."""
    match = _TAG.search(reason)
    return named(match[1]) if match else None


def untagged(reason: str) -> str:
    """Return the text without tags."""
    return _ANY_TAG.sub("", reason).strip()
