"""What the findings of checks mean for jobs: only what changed since the last run is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue import remedies
from slurm_robust.nodecheck.engine import history
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status
from slurm_robust.nodewatch import urgency
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

_BAD = (Status.WARN, Status.FAIL)


def to_json(name: str, finding: Finding) -> dict[str, Any]:
    """A finding on its way from a child; only those parts of its evidence that are used."""
    evidence = {key: finding.evidence[key] for key in ("gpus", "hung") if key in finding.evidence}
    return {
        "name": name,
        "status": finding.status.value,
        "reason": finding.reason,
        "sentence": finding.sentence,
        "evidence": evidence,
    }


class Verdicts:
    """What each check said last.

    Args:
        boot: The kernel's name of this boot.
        settings: The options of each check, with its strikes.
        gpus: Numbers of GPUs by their PCI address.
        kept: From `kept` of an earlier start in this boot; anything else counts as none.
        first: Nobody has looked before in this boot. What a check finds at its first look may be older than all jobs
            on the node, which its prolog let start: that is a note, unless it is urgent.
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
        self._said = {
            name: tuple(said)
            for name, said in kept.items()
            if isinstance(said, list) and len(said) == 2 and all(isinstance(part, str) for part in said)
        }
        self._strikes: dict[str, Any] = {}

    @property
    def kept(self) -> dict[str, list[str]]:
        """What is wrong now, for the next start; plain JSON."""
        return {name: list(said) for name, said in self._said.items()}

    def changes(self, source: str, results: Sequence[Mapping[str, Any]], moment: Moment) -> list[Seen]:
        """What these results say that the last ones did not.

        A failure counts after as many runs in a row as the check's own strikes; a run that could not tell changes
        nothing.
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
            now = (finding.status.value, finding.reason) if finding.status in _BAD else None
            before = self._said.get(name)
            if now == before:
                continue
            if now is None:
                self._said.pop(name, None)
                found.append(self._seen(source, name, finding, urgency.NOTE, moment))
            else:
                self._said[name] = now
                rule = urgency.of_check(name, finding.reason, finding.status).name
                rule = urgency.NOTE if first and rule != urgency.NOW else rule
                found.append(self._seen(source, name, finding, rule, moment))
        return found

    def _seen(self, source: str, name: str, finding: Finding, urgent: str, moment: Moment) -> Seen:
        bad, failed = finding.status in _BAD, finding.status is Status.FAIL
        text = finding.sentence if bad else f"{name} is well again: {finding.sentence}"
        gpus = self._gpus.of(gpu["bus"] for gpu in finding.evidence.get("gpus", ()) if gpu.get("bus")) if bad else ()
        if bad and name == "gpu_count":
            gpus = self._gpus.missing()
        made = NodeFinding(0, moment.wall_s, source, name, urgent, text, gpus)
        remedy = remedies.of_result(Result(name, finding))
        about = f"{finding.status.value} {finding.reason}"
        return Seen(made, about=about, unfit=failed, remedy=remedy.value if remedy else "", well=not bad)


def _result(raw: Mapping[str, Any]) -> Result:
    finding = Finding(Status(raw["status"]), raw["reason"], raw["sentence"], "", raw.get("evidence") or {})
    return Result(raw["name"], finding)
