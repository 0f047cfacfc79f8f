"""Judges the meaning of kernel log lines for jobs, by the checks' own probes and judges, as the lines come.

The checks `xid`, `kernel_log` and `nic_log` read these records as if they were the whole log. Between two batches only
counts are kept, of events that are told only if they come often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.catalogue import job_urgency, remedies, sxids
from slurm_robust.nodecheck.catalogue.xids import XidGrade
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodecheck.engine.registry import Check
from slurm_robust.nodecheck.sources.kmsg import KernelLog
from slurm_robust.nodecheck.sources.kmsg_line import parse
from slurm_robust.nodewatch import disk_use, urgency
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

CHECKS = ("xid", "kernel_log", "nic_log")
_COUNT_S = 1800.0
_EXAMPLE_CHARS = 160
_MAX_NAMES = 8
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class KernelLines:
    """Judges batches of records.

    Args:
        context: The context of the checks; each batch replaces its kernel log. Its shared values are kept.
        chosen: The site's options by check.
        gpus: Numbers of GPUs by their PCI address.
        disable: Checks that the site has switched off.
    """

    def __init__(
        self,
        context: Context,
        chosen: Mapping[str, Mapping[str, Any]],
        gpus: GpuNumbers,
        disable: Sequence[str] = (),
    ) -> None:
        self._context = replace(context, cache_dir=None, stage="periodic")
        self._checks: dict[str, Check] = {check.name: check for check in registry.select("full", CHECKS, disable)}
        self._settings = {name: check.settings(chosen.get(name, {})) for name, check in self._checks.items()}
        self._gpus = gpus
        self._tainted = 0
        self._often: dict[str, tuple[int, float]] = {}  # kind → lines, since when

    def judge(self, log: KernelLog, moment: Moment, source: str = "kmsg") -> list[Seen]:
        """Return the findings in these records, oldest first.

        Args:
            log: The records: raw ones with their numbers, or a saved log's lines (then it has a name).
            moment: When they were read; a record with a time since boot has its own.
            source: The source that the findings name.
        """
        found = []
        for name, check in self._checks.items():
            context = replace(
                self._context, shared={**self._context.shared, "kernel_log": log, "tainted": self._tainted}
            )
            facts = check.probe(context, self._settings[name])
            self._tainted = facts.get("tainted", self._tainted)
            if name == "xid":
                found += self._xids(check, facts, log, moment, source)
            else:
                found += self._troubles(check, facts, log, moment, source)
        return sorted(found, key=lambda seen: seen.finding.at_s)

    def _xids(self, check: Check, facts: dict[str, Any], log: KernelLog, moment: Moment, source: str) -> list[Seen]:
        found = []
        for event in facts["new"]:
            verdict = check.judge({**facts, "new": [event], "latched": []}, self._settings[check.name])
            code, message = event["xid"], event["message"]
            grade = {Status.FAIL: XidGrade.FAIL, Status.WARN: XidGrade.WARN}.get(verdict.status, XidGrade.NOTE)
            of_switch = code >= sxids.FIRST_CODE
            rule = urgency.of_sxid(code, grade) if of_switch else urgency.of_xid(code, grade, message)
            gpus = () if of_switch else self._gpus.of([event["gpu"]])
            kind = "sxid" if of_switch else "xid"
            at_s = _time_of(log, message or f"): {code}", moment)
            finding = NodeFinding(0, at_s, source, kind, rule.name, verdict.sentence, gpus, "", code)
            unfit = verdict.status is Status.FAIL
            remedy = remedies.of_event(code, message)
            seen = Seen(finding, event["count"], event["gpu"], unfit=unfit, remedy=remedy.value if remedy else "")
            found.append(seen)
        return found

    def _troubles(self, check: Check, facts: dict[str, Any], log: KernelLog, moment: Moment, source: str) -> list[Seen]:
        found = []
        for kind, entry in facts["seen"].items():
            counted = {**entry, "count": self._tally(kind, entry["count"], moment)}
            verdict = check.judge({**facts, "seen": {kind: counted}, "known": []}, self._settings[check.name])
            if verdict.status not in (Status.WARN, Status.FAIL):
                continue
            names = entry.get("names") or entry.get("cards") or []
            gpus = self._gpus.of(names) if kind == "gpu_driver" else ()
            on_gpu = kind == "gpu_driver" and any(_PCI.match(name) for name in names)
            rule = urgency.of_kernel(kind, verdict.status, about_gpu=on_gpu)
            if kind == "disk_lost":
                used = disk_use.in_use(self._context.root, names)
                rule = urgency.of_lost_disk(verdict.status, example=entry["example"], named=bool(names), used=used)
            if kind in facts.get("unseen", ()) and verdict.status is Status.WARN:
                rule = urgency.UNSEEN
            text = _sentence(kind, names, entry["example"])
            finding = NodeFinding(0, _time_of(log, entry["example"], moment), source, kind, rule.name, text, gpus)
            unfit = verdict.status is Status.FAIL
            found.append(Seen(finding, entry["count"], ",".join(names[:_MAX_NAMES]), unfit=unfit))
        for kind, name in facts.get("back", [])[-4:]:
            text = f"kernel log: {kind}: {name or 'it'} is back"
            found.append(
                Seen(NodeFinding(0, moment.wall_s, source, kind, job_urgency.NOTE, text), about=f"back {name}")
            )
        return found

    def _tally(self, kind: str, count: int, moment: Moment) -> int:
        """Count these lines, and return how many lines of this kind came in the last half hour."""
        before, since_s = self._often.get(kind, (0, moment.uptime_s))
        if moment.uptime_s - since_s > _COUNT_S:
            before, since_s = 0, moment.uptime_s
        self._often[kind] = (before + count, since_s)
        return before + count


def _time_of(log: KernelLog, text: str, moment: Moment) -> float:
    """Return when the first record with this text was written, in seconds since the epoch."""
    end = b"\n" if log.name else b"\0"
    at = log.data.find(text.encode("utf-8", "replace"))
    if at < 0:
        return moment.wall_s
    first = log.data.rfind(end, 0, at) + 1
    record = parse(log.data[first : at + len(text)].decode("utf-8", "replace"))
    if record is None or record.uptime_s is None:
        return moment.bounded(record.wall_s) if record and record.wall_s else moment.wall_s
    return moment.of_uptime(record.uptime_s)


def _sentence(kind: str, names: list[str], example: str) -> str:
    about = f" ({', '.join(names[:_MAX_NAMES])})" if names else ""
    return f"kernel log: {kind}{about}: {example[:_EXAMPLE_CHARS]}"
