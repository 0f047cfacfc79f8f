"""Reads and writes the fault marker: a node's own words in its `Extra` field that a fault has struck it.

`[[srobust-fault v=1 at=1763686800 kind=xid gpus=0,1 repair=reboot : XID 79 on GPU 0]]`: when (seconds since the epoch),
the kind of fault, the GPUs (as the node watch numbers them; without `gpus=` it is the whole node), what repairs it
without a person (if anything does), and a sentence for the reason of a drain. The node's root service writes it, and
the daemon reads it with the nodes and removes it once that fault is dealt with. ` jobs=stay` before the colon: jobs can
go on, only the node is to be drained. It stands in `Extra`, not in `Comment`,
because the daemon writes the comments of many nodes at once (the drain permits), and would overwrite a marker that it
has not read yet. What a person wrote there stays. Only root and Slurm's operators can write the field. Standard library
and `marks` only; nothing here acts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.marks import field_text
from slurm_robust.marks.node_findings import about_gpus

MAX_AGE_S = 3600.0
"""The age beyond which a marker is ignored: jobs of that time have ended, or go on in spite of the fault."""
CLOCKS_DIFFER_S = 60.0
"""A node's clock may differ from the daemon's, or from its own at boot, by this much."""
MAX_SENTENCE_CHARS = 160
MAX_GPUS = 64

_MARKER = re.compile(
    r"\[\[srobust-fault v=1 at=([0-9]{1,12}) kind=([a-z0-9_]{1,32})"
    r"(?: gpus=([0-9]{1,4}(?:,[0-9]{1,4}){0,63}))?(?: repair=([a-z_]{1,20}))?( jobs=stay)? : ([^\[\]]{1,200})\]\]"
)
_ANY = field_text.marker("fault")


class FaultMarker(NamedTuple):
    """A fault of a node.

    Attributes:
        at_s: When it was seen, whole seconds since the epoch.
        kind: The kind of fault, as the findings name it.
        gpus: The GPUs that are affected; empty for the whole node.
        sentence: For people, and for the reason of a drain.
        remedy: The name of what repairs it; empty for nothing.
        spares_jobs: Jobs there can go on.
    """

    at_s: int
    kind: str
    gpus: tuple[int, ...]
    sentence: str
    remedy: str = ""
    spares_jobs: bool = False

    @property
    def about_gpus(self) -> bool:
        """Whether the fault concerns only jobs that use GPUs."""
        return about_gpus(self.kind, self.gpus)


def parse(extra: str) -> FaultMarker | None:
    """Return the last marker in this text; None if no marker can be read. Never raises."""
    found = _MARKER.findall(extra)
    if not found:
        return None
    at, kind, gpus, remedy, stay, sentence = found[-1]
    numbers = tuple(int(gpu) for gpu in gpus.split(",") if gpu)
    return FaultMarker(int(at), kind, numbers, field_text.sentence(sentence, MAX_SENTENCE_CHARS), remedy, bool(stay))


def marked(extra: str) -> bool:
    """Return whether there is any marker, also one that cannot be read."""
    return _ANY.search(extra) is not None


def without(extra: str) -> str:
    """Return the text without any fault marker, as Slurm takes it."""
    return field_text.without(_ANY, extra)


def render(marker: FaultMarker, extra: str = "") -> str:
    """Return the text with this marker in place of every marker in it; other text stays."""
    kind = re.sub(r"[^a-z0-9_]", "_", marker.kind.lower())[:32] or "fault"
    gpus = sorted({gpu for gpu in marker.gpus if 0 <= gpu <= 9999})
    # Too many to name: then it is the whole node.
    named = f" gpus={','.join(map(str, gpus))}" if gpus and len(gpus) <= MAX_GPUS else ""
    remedy = re.sub(r"[^a-z_]", "", marker.remedy)[:20]
    named += f" repair={remedy}" if remedy else ""
    named += " jobs=stay" if marker.spares_jobs else ""
    at_s = min(max(int(marker.at_s), 0), 999_999_999_999)
    sentence = field_text.sentence(marker.sentence, MAX_SENTENCE_CHARS) or "a fault"
    return f"{without(extra)} [[srobust-fault v=1 at={at_s} kind={kind}{named} : {sentence}]]".lstrip()


def joined(new: FaultMarker, old: FaultMarker | None) -> FaultMarker:
    """Return one marker for two faults of a node: the newer words, the GPUs of both, and a remedy that both name.

    If only one of the two faults spares jobs, that fault is dropped. If only one is about GPUs, the other one gives the
    kind: it concerns jobs without GPUs, too.
    """
    if old is None:
        return new
    if new.spares_jobs != old.spares_jobs:
        return old if new.spares_jobs else new
    gpus = tuple(sorted({*new.gpus, *old.gpus})) if new.gpus and old.gpus else ()
    newest, other = (new, old) if new.at_s >= old.at_s else (old, new)
    kind = other.kind if newest.about_gpus and not other.about_gpus else newest.kind
    return newest._replace(kind=kind, gpus=gpus, remedy=new.remedy if new.remedy == old.remedy else "")


def fresh(marker: FaultMarker, now_s: float, boot_at_s: float, seen_s: float) -> bool:
    """Return whether the marker may be acted on: of this boot of the node, and not too old.

    One of the future comes from a clock that is ahead: its age counts from `seen_s`, when it was seen first.
    """
    return now_s - min(marker.at_s, seen_s) <= MAX_AGE_S and marker.at_s >= boot_at_s - CLOCKS_DIFFER_S
