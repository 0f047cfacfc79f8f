"""Tells Slurm of faults that make this node unfit: marks the faults for srobustd, or drains the node by permit.

The gate decides what to do, as it does for prolog and health check. The calls run in a child with a deadline, one child
at a time, and only if something is to be told: a slurmctld that does not answer costs the service nothing. While
slurmctld is away, the child is started again after growing pauses, as a source that breaks is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_robust.marks.fault_marker import MAX_AGE_S, FaultMarker
from slurm_robust.marks.node_findings import about_gpus
from slurm_robust.marks.remedy import Remedy
from slurm_robust.nodecheck.catalogue import remedies
from slurm_robust.nodecheck.catalogue.job_urgency import NOW
from slurm_robust.nodecheck.engine.finding import shorten
from slurm_robust.nodewatch.child import ChildSource, Message, Send
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Say, Seen
from slurm_robust.nodewatch.source import NEVER_S

if TYPE_CHECKING:
    from slurm_robust.config.site import Config

NAME = "slurm"
GAP_S, LONGEST_GAP_S = 2.0, 60.0
"""The least time between two children; it doubles while new faults come, so that many nodes do not flood slurmctld."""
AGAIN_S = 600.0
"""The same fault is not told again within this time, unless it was over in between."""
_SLACK_S = 4.0
"""The time for the child's start and the gate's random pause, beside the time for its calls."""
_MAX_FAULTS = 32
_RECENT_S = 600.0
"""The age beyond which a fault happened before this service watched: prolog and health check deal with such faults."""


class UnfitNode(NamedTuple):
    """A fault that makes this node unfit, and is to be told.

    Attributes:
        urgent: The jobs on this node cannot go on.
        about: A text that tells the fault from others of its kind.
        remedy: The remedy, as in `Seen`.
    """

    kind: str
    at_s: float
    text: str
    urgent: bool
    gpus: tuple[int, ...] = ()
    about: str = ""
    remedy: str = ""


Tell = Callable[[Sequence[UnfitNode], Say], None]
"""Runs in the child; raises where Slurm could not be asked."""


class SlurmReporter(ChildSource):
    """The faults that Slurm does not know yet; no source of findings.

    Args:
        tell: Tells Slurm.
        say: Writes a line for people.
        silent_s: The child is abandoned after so long without a word.
        hung: The child that hung, as in `ChildSource`.
        kept: The `kept` of an earlier start in this boot; anything else counts as none.
    """

    def __init__(
        self, tell: Tell, say: Say, *, silent_s: float, hung: str = "", kept: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(NAME, self._tell, self._answered, every_s=GAP_S, silent_s=silent_s, hung=hung)
        self._tell_slurm, self._say = tell, say
        self._waiting = {_key(fault): fault for fault in _faults(kept)}
        self._told: dict[str, float] = {}
        self._asked: tuple[UnfitNode, ...] = ()
        self._next_s, self._gap_s = 0.0, GAP_S

    @property
    def kept(self) -> dict[str, list[list[Any]]]:
        """The faults that are to be told, for the next start; plain JSON."""
        return {"waiting": [[*fault[:4], list(fault.gpus), *fault[5:]] for fault in self._waiting.values()]}

    def offer(self, seen: Seen, moment: Moment) -> None:
        """Note a finding: it is told if it makes the node unfit, and no longer once the fault is over."""
        finding = seen.finding
        if seen.well:
            self._waiting = {key: fault for key, fault in self._waiting.items() if fault.kind != finding.kind}
            self._told = {key: at_s for key, at_s in self._told.items() if not key.startswith(f"{finding.kind} ")}
            return
        if not seen.unfit or moment.wall_s - finding.at_s > _RECENT_S:
            return
        text = shorten(finding.text.encode("ascii", "replace").decode())
        fault = UnfitNode(
            finding.kind, finding.at_s, text, finding.urgency == NOW, finding.gpus, seen.about, seen.remedy
        )
        key = _key(fault)
        recently = self._told.get(key, -AGAIN_S) > moment.monotonic_s - AGAIN_S
        if recently or key in self._waiting or len(self._waiting) >= _MAX_FAULTS:
            return
        self._waiting[key] = fault
        if self.fd < 0:
            self._plan(moment)

    def open(self, moment: Moment) -> None:
        """Be ready; a child is started only if there is something to tell."""
        self.require_none_hung()
        self._plan(moment)

    def tick(self, moment: Moment) -> list[Seen]:
        """Start the child, or give up one that is silent."""
        if self.fd >= 0:
            return super().tick(moment)
        alive = {key: fault for key, fault in self._waiting.items() if moment.wall_s - fault.at_s <= MAX_AGE_S}
        self._waiting = alive
        self.due_s = NEVER_S
        if alive:
            self._asked = tuple(alive.values())
            quiet = moment.monotonic_s - self._next_s > LONGEST_GAP_S
            self._gap_s = GAP_S if quiet else min(2 * self._gap_s, LONGEST_GAP_S)
            self._next_s = moment.monotonic_s + self._gap_s
            self._start(moment)
        return []

    def _ended(self, moment: Moment) -> list[Seen]:
        super()._ended(moment)
        self._plan(moment)
        return []

    def _plan(self, moment: Moment) -> None:
        self.due_s = max(moment.monotonic_s, self._next_s) if self._waiting else NEVER_S

    def _tell(self, send: Send) -> None:
        self._tell_slurm(self._asked, lambda line: send({"line": line}))
        send({"done": True})

    def _answered(self, message: Message, moment: Moment) -> list[Seen]:
        if "line" in message:
            self._say(str(message["line"])[:1000])
        if message.get("done"):
            for fault in self._asked:
                self._waiting.pop(_key(fault), None)
                self._told[_key(fault)] = moment.monotonic_s
            since_s = moment.monotonic_s - AGAIN_S
            self._told = {key: at_s for key, at_s in self._told.items() if at_s > since_s}
        return []


def reporter(config: Config, node: str, say: Say, *, hung: str, kept: Mapping[str, Any]) -> SlurmReporter:
    """Return the reporter of this node, by the site's configuration."""

    def tell(faults: Sequence[UnfitNode], say: Say) -> None:
        from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result  # noqa: PLC0415 (the child's)
        from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (the child alone speaks to Slurm)

        first = sorted(faults, key=lambda fault: (not fault.urgent, fault.at_s))
        results = tuple(
            Result(fault.kind, Finding.fail(fault.kind, fault.text, "", {"repair": fault.remedy})) for fault in first
        )
        gate.tell_fault(NodeReport(node, "periodic", results), marker_of(first), config, say)

    return SlurmReporter(tell, say, silent_s=config.nodecheck.permit_timeout_s + _SLACK_S, hung=hung, kept=kept)


def marker_of(faults: Sequence[UnfitNode]) -> FaultMarker:
    """Return one marker for the faults that jobs cannot go on with; without any, one for all, which spares jobs."""
    urgent = [fault for fault in faults if fault.urgent]
    told = urgent or list(faults)
    whole_node = any(not fault.gpus for fault in told)
    gpus = () if whole_node else tuple(sorted({gpu for fault in told for gpu in fault.gpus}))
    sentence = "; ".join(dict.fromkeys(fault.text for fault in told))
    remedy = remedies.strongest(Remedy(fault.remedy) if fault.remedy else None for fault in told)
    at_s = int(max(fault.at_s for fault in told))
    # A kind that is about GPUs alone would say that jobs without GPUs can go on.
    kind = next((fault.kind for fault in told if not about_gpus(fault.kind, fault.gpus)), told[0].kind)
    return FaultMarker(at_s, kind, gpus, sentence, remedy.value if remedy else "", spares_jobs=not urgent)


def lacking(config: Config) -> str:
    """Return why Slurm could not be told of faults from here, and what to do about it; empty if nothing is missing."""
    folder = config.slurm.bin_dir
    found = shutil.which("scontrol", path=folder or None)
    if found is not None:
        return ""
    where = folder or "the service's PATH"
    return (
        f"scontrol is not in {Path(where) if folder else where}: jobs learn of faults, and Slurm does not; set "
        "slurm.bin_dir in robust.yaml to the folder of Slurm's commands"
    )


def _key(fault: UnfitNode) -> str:
    return f"{fault.kind} {','.join(map(str, fault.gpus))} {fault.urgent} {fault.about}"


def _faults(kept: Mapping[str, Any] | None) -> list[UnfitNode]:
    """Return the faults that an earlier start left; anything else is left out."""
    raw = (kept or {}).get("waiting")
    found = map(_fault, raw[:_MAX_FAULTS] if isinstance(raw, list) else ())
    return [fault for fault in found if fault is not None]


def _fault(row: Any) -> UnfitNode | None:
    try:
        kind, at_s, text, urgent, gpus, about, remedy = row
        known = Remedy(remedy).value if remedy else ""
        return UnfitNode(str(kind), float(at_s), str(text), bool(urgent), tuple(map(int, gpus)), str(about), known)
    except (TypeError, ValueError):
        return None
