"""Asks all sources one time, in order (`srobust nodewatch --once`); nothing is kept, and no file is written."""

from __future__ import annotations

from dataclasses import replace

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.choices import Choices
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import kmsg
from slurm_robust.nodewatch import nvml_watch, polls
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers, driver_numbers
from slurm_robust.nodewatch.kernel_lines import KernelLines
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Say, Seen
from slurm_robust.nodewatch.verdicts import Verdicts, to_json

_SOURCES = {**dict.fromkeys(nvml_watch.CHECKS, "nvml"), **dict.fromkeys(polls.RDMA_CHECKS, "rdma")}


def look(chosen: Choices, context: Context, say: Say) -> list[NodeFinding]:
    """Return the present findings, by this boot's kernel log and one run of every check of the service.

    Returns:
        Findings numbered from 1, oldest first.
    """
    moment = Moment.now()
    gpus = GpuNumbers(context.root)
    gpus.learn(driver_numbers(context.root)[0])
    here = replace(context, cache_dir=None, stage="periodic")
    log = kmsg.load(here.kmsg)
    if log.error:
        say(f"kmsg: {log.error}")
    found: list[Seen] = [] if log.error else KernelLines(here, chosen.options, gpus, chosen.disable).judge(log, moment)
    checks = polls.available([*polls.NODE_CHECKS, *polls.RDMA_CHECKS, *nvml_watch.CHECKS], chosen.disable)
    report = runner.run(checks, here, chosen.options, chosen.deadline_s)
    settings = {check.name: check.settings(chosen.options.get(check.name, {})) for check in checks}
    for check in settings.values():
        check["strikes"] = 1  # there is no second run
    verdicts = Verdicts(node_findings.boot_id(), settings, gpus, {})
    for result in report.results:
        source = _SOURCES.get(result.name, "poll")
        found += verdicts.changes(source, [to_json(result.name, result.finding)], Moment.now())
    found.sort(key=lambda seen: seen.finding.at_s)
    return [seen.finding._replace(seq=number) for number, seen in enumerate(found, 1)]
