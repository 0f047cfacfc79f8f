"""Says what the findings of checks mean for jobs: only changes since the last run are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue import job_urgency, remedies
from slurm_robust.nodecheck.checks.gpu.xid import gpu_name
from slurm_robust.nodecheck.engine import history
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status
from slurm_robust.nodewatch import urgency
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

_BAD = (Status.WARN, Status.FAIL)


def to_json(name: str, finding: Finding) -> dict[str, Any]:
    """Return a finding for its way from a child, with only the used parts of its evidence."""
    evidence = {key: finding.evidence[key] for key in ("gpus", "hung") if key in finding.evidence}
    return {
        "name": name,
        "status": finding.status.value,
        "reason": finding.reason,
        "sentence": finding.sentence,
        "evidence": evidence,
    }


class _Said(NamedTuple):
    """The last words of a check: status, reason, and the PCI addresses of the GPUs that it was about."""

    status: str
    reason: str
    gpus: frozenset[str] = frozenset()


class Verdicts:
    """The last status of each check, to tell what changed.

    Args:
        boot: The kernel's name of this boot.
        settings: The options of each check, with its strikes.
        gpus: Numbers of GPUs by their PCI address.
        kept: The `kept` of an earlier start in this boot; anything else counts as none.
        first: Whether this is the first look in this boot. A finding of the first look may be older than all jobs on
            the node, which the prolog let start: such a finding is a note, unless it is urgent.
    """

    def __init__(
        self,
        boot: str,
        settings: Mapping[str, Mapping[str, Any]],
        gpus: GpuNumbers,
        kept: Mapping[str, Any],
        *,
        first: bool = False,
    ) -> None:
        self._first = first
        self._looked: set[str] = set()
        self._boot, self._settings, self._gpus = boot, settings, gpus
        self._said = {name: said for name, raw in kept.items() if (said := _kept_said(raw)) is not None}
        self._looks: dict[str, dict[str, int]] = {}
        """Check → GPUs that have joined a fault which others have, and in how many looks."""
        self._strikes: dict[str, Any] = {}

    @property
    def kept(self) -> dict[str, list[Any]]:
        """The present problems, for the next start; plain JSON."""
        return {name: [said.status, said.reason, sorted(said.gpus)] for name, said in self._said.items()}

    def changes(self, source: str, results: Sequence[Mapping[str, Any]], moment: Moment) -> list[Seen]:
        """Return the findings that are new since the last results.

        A failure counts after as many runs in a row as the check's own strikes; a run that could not tell changes
        nothing. If the same fault comes to more GPUs, only the new GPUs are told.
        """
        report = NodeReport("", "periodic", tuple(_result(raw) for raw in results))
        weighed, self._strikes = history.weigh(
            report, self._strikes, self._settings, boot_id=self._boot, now_s=moment.uptime_s
        )
        found = []
        for name, finding in ((result.name, result.finding) for result in weighed.results):
            if finding.status is Status.UNKNOWN or "look" in finding.evidence:
                continue
            first = self._first and name not in self._looked
            self._looked.add(name)
            before = self._said.get(name)
            if finding.status not in _BAD:
                self._looks.pop(name, None)
                if self._said.pop(name, None) is not None:
                    found.append(self._seen(source, Result(name, finding), job_urgency.NOTE, moment))
                continue
            hit = self._hit(name, finding)
            known = before is not None and (before.status, before.reason) == (finding.status.value, finding.reason)
            told = before.gpus if before is not None and known else frozenset()
            # One that named no GPU was about all of them.
            new = self._joined(name, finding, hit - told if told else frozenset())
            waiting = frozenset(self._looks.get(name, ()))
            self._said[name] = _Said(finding.status.value, finding.reason, hit - waiting)
            if known and not new:
                continue
            rule = urgency.of_check(name, finding.reason, finding.status).name
            rule = job_urgency.NOTE if first and rule != job_urgency.NOW else rule
            joined = f" (new on {', '.join(sorted(new))})" if known else ""
            said = Result(name, replace(finding, sentence=finding.sentence + joined))
            found.append(self._seen(source, said, rule, moment, new or hit))
        return found

    def _hit(self, name: str, finding: Finding) -> frozenset[str]:
        """PCI addresses of the GPUs that a fault is about; empty for any of the node's."""
        if name == "gpu_count":
            return self._gpus.missing()
        return frozenset(gpu_name(gpu["bus"]) for gpu in finding.evidence.get("gpus", ()) if gpu.get("bus"))

    def _joined(self, name: str, finding: Finding, more: frozenset[str]) -> frozenset[str]:
        """Return those of these GPUs that had the fault for as many looks in a row as the check's strikes."""
        before = self._looks.pop(name, {})
        strikes = int(self._settings.get(name, {}).get(history.STRIKES, 1)) if finding.status is Status.FAIL else 1
        looks = {gpu: before.get(gpu, 0) + 1 for gpu in more}
        if waiting := {gpu: count for gpu, count in looks.items() if count < strikes}:
            self._looks[name] = waiting
        return more.difference(waiting)

    def _seen(
        self, source: str, result: Result, urgent: str, moment: Moment, hit: frozenset[str] = frozenset()
    ) -> Seen:
        name, finding = result.name, result.finding
        bad, failed = finding.status in _BAD, finding.status is Status.FAIL
        text = finding.sentence if bad else f"{name} is well again: {finding.sentence}"
        gpus = self._gpus.of(hit)
        made = NodeFinding(0, moment.wall_s, source, name, urgent, text, gpus)
        remedy = remedies.of_result(result)
        about = f"{finding.status.value} {finding.reason}"
        return Seen(made, about=about, unfit=failed, remedy=remedy.value if remedy else "", well=not bad)


def _kept_said(raw: Any) -> _Said | None:
    """Return what an earlier start kept; None for anything else."""
    match raw:
        case [str(status), str(reason)]:  # of a version that did not keep GPUs
            return _Said(status, reason)
        case [str(status), str(reason), list(gpus)] if all(isinstance(gpu, str) for gpu in gpus):
            return _Said(status, reason, frozenset(gpus))
    return None


def _result(raw: Mapping[str, Any]) -> Result:
    finding = Finding(Status(raw["status"]), raw["reason"], raw["sentence"], "", raw.get("evidence") or {})
    return Result(raw["name"], finding)
