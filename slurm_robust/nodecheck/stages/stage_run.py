"""What prolog, epilog and health check run when no fresh verdict will do: the whole look, and what follows from it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_robust.nodecheck.engine import check_state, choices, history, isolate, registry, runner
from slurm_robust.nodecheck.engine.context import Context, job_choice_of, job_of, node_name
from slurm_robust.nodecheck.engine.counters import uptime_s
from slurm_robust.nodecheck.engine.finding import Fitness, Report, Status, shorten
from slurm_robust.nodecheck.stages import cached_verdict, fast_path

EXIT_DONE, EXIT_CONFIG = 0, 2
FIRST_USER_ID = 1000
"""Accounts below it are the system's (useradd's own convention); those above are people."""

SECOND_LOOK_S = 1.0
CONF_TIMEOUT_S = 1.0
LINE_MAX_CHARS = 1000
SYSLOG = "/dev/log"
_DAEMON_WARNING = 3 << 3 | 4
"""Facility and severity, as syslog(3) packs them."""

Log = Callable[[str], None]


def main(stage: str, config: str, *, verbose: bool = False, why: str = "", again: str = "") -> int:
    """Look, and let the job start or not.

    Args:
        stage: `prolog`, `epilog` or `periodic`.
        config: The configuration's path.
        verbose: Say one line also where all is well.
        why: Why there is no fresh verdict.
        again: JSON, checks and their options: the fresh verdict holds and only these are looked at.

    Returns:
        As `quick.main`.
    """
    env = os.environ
    node = node_name(env)
    log = logger(f"srobust-{stage}", env)
    try:
        chosen = choices.load(config, node)
        if not chosen.enabled:
            return EXIT_DONE
        context = chosen.context(node, stage, env)
        if again and (said := _again(again, chosen, context)):
            if verbose:
                print(f"srobust-{stage}: fresh verdict, and {said}", file=sys.stderr)
            return EXIT_DONE
        for name in chosen.options:
            registry.require(name)
        checks = registry.select(stage, (), chosen.disable)
        return _look(checks, chosen, context, config, log=log, told=_Told(verbose, why))
    except (choices.Wrong, registry.CheckError) as error:
        print(f"srobust-{stage}: {error}", file=sys.stderr)
        return EXIT_CONFIG


class _Told:
    """What a person who looks for it finds in the log although all is well."""

    def __init__(self, verbose: bool, why: str) -> None:
        self.verbose, self.why = verbose, why

    def __call__(self, report: Report) -> None:
        if self.verbose:
            because = f" (no fresh verdict: {self.why})" if self.why else ""
            words = f"{report.node}: {report.verdict.value}, {len(report.results)} checks{because}"
            print(f"srobust-{report.stage}: {words}", file=sys.stderr)


def _again(names: str, chosen: choices.Choices, context: Context) -> str:
    """Look at these checks alone; empty where they found anything, so that the whole look has to say what."""
    options: dict[str, Any] = json.loads(names)
    report = runner.run([registry.get(name) for name in options], context, options, chosen.deadline_s)
    if any(result.finding.status not in (Status.PASS, Status.SKIP) for result in report.results):
        return ""
    return f"{', '.join(options)} looked at again"


def _look(
    checks: list[registry.Check], chosen: choices.Choices, context: Context, config: str, *, log: Log, told: _Told
) -> int:
    assert context.cache_dir is not None
    log_end = cached_verdict.mark(context.kmsg)
    settings = {check.name: check.settings(chosen.options.get(check.name, {})) for check in checks}
    found = runner.run(checks, context, chosen.options, chosen.deadline_s)
    report, looks = history.weigh(
        _second_look(found, checks, chosen, context, log),
        check_state.load(context.cache_dir, history.NAME),
        settings,
        boot_id=context.boot_id(),
        now_s=uptime_s(),
        job_id=context.job_id,
    )
    if looks["checks"] or (context.cache_dir / f"{history.NAME}.json").exists():
        kept = check_state.save(context.cache_dir, history.NAME, looks)
        if not kept and os.geteuid() == 0:
            log(f"{report.node}: nothing can be kept in {context.cache_dir}: neither strikes nor counters add up")
    if context.stage == "epilog":
        # Less was looked at than a prolog would: what stands is left, or taken away.
        if found.verdict is not Fitness.FIT or any(r.finding.status is Status.WARN for r in found.results):
            check_state.drop(context.cache_dir, fast_path.NAME)
    else:
        cached_verdict.leave(found, checks, chosen, context, config, log_end=log_end)
    for result in report.results:
        if "look" in result.finding.evidence and result.finding.status is Status.WARN:
            log(f"{report.node}: {result.finding.sentence}: not yet held against it")
    told(report)
    if report.verdict is Fitness.FIT:
        return EXIT_DONE
    if report.verdict is Fitness.UNKNOWN:
        log(f"{report.node}: could not tell, the job may start: {report.sentence}")
        return EXIT_DONE
    return _act(report, config, log)


def _second_look(
    found: Report,
    checks: list[registry.Check],
    chosen: choices.Choices,
    context: Context,
    log: Log,
) -> Report:
    """Before a job and after it, look once more at a fault that the health check would not believe at once.

    What comes and goes (a link, a full disk) is gone a moment later; one that stays counts.
    """
    doubtful = [
        check
        for check, result in zip(checks, found.results, strict=True)
        if result.finding.status is Status.FAIL
        and check.settings(chosen.options.get(check.name, {})).get(history.STRIKES, 1) > 1
    ]
    if context.stage == "periodic" or not doubtful:
        return found
    import time  # noqa: PLC0415 (nearly every look is over by now)

    time.sleep(SECOND_LOOK_S)
    again = {r.name: r for r in runner.run(doubtful, context, chosen.options, chosen.deadline_s).results}
    for result in found.results:
        if result.name in again and again[result.name].finding.status is not Status.FAIL:
            log(f"{found.node}: {result.finding.sentence}: not so a second later, and not held against it")
    return replace(found, results=tuple(again.get(result.name, result) for result in found.results))


def _act(report: Report, config: str, log: Log) -> int:
    """An unfit node: ask Slurm, which takes the whole configuration."""
    whole = choices.read(config)
    distrust_slurm_conf(os.environ)
    from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (a fit node never pays for Slurm)

    return gate.act(report, whole, log, job_id=job_of(os.environ))


def distrust_slurm_conf(env: os._Environ[str] | dict[str, str]) -> None:
    """Forget `SLURM_CONF` where it names a file that a person may write: Slurm's commands load plugins that it names.

    slurmd sets it for its scripts, so this finds something only where somebody else got hold of the environment.
    """
    path = env.get("SLURM_CONF")
    if path is None or os.geteuid() != 0:
        return
    # In a process of its own: it may lie on a file server that does not answer, and this one must.
    task = isolate.Task(lambda: _of_the_system(path), CONF_TIMEOUT_S)
    if not isolate.run_all({"conf": task})["conf"].value:
        del env["SLURM_CONF"]


def _of_the_system(path: str) -> bool:
    """True for a file that no person owns or may write; any error says the same as False."""
    info = os.stat(path)  # noqa: PTH116 (a path from outside, taken as it is)
    return path.startswith("/") and info.st_uid < FIRST_USER_ID and not fast_path.others_may_write(info)


def logger(name: str, env: Mapping[str, str]) -> Log:
    """Writes one printable line to stderr (slurmd's log keeps it) and to syslog."""
    job_id = job_of(env)
    choice = job_choice_of(env)
    about = f"job {job_id}{f' ({choice})' if choice else ''}: " if job_id is not None else ""

    def log(line: str) -> None:
        text = shorten(f"{about}{line}", LINE_MAX_CHARS)
        print(f"{name}: {text}", file=sys.stderr)
        _to_syslog(f"{name}: {text}")

    return log


def _to_syslog(text: str) -> None:
    """One line, or none where nobody takes it at once: syslog(3) waits for a logger that hangs, and the job with it."""
    import socket  # noqa: PLC0415 (nearly every look has nothing to say)
    import time  # noqa: PLC0415 (the same)

    stamp = time.strftime("%b %e %H:%M:%S")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.connect(SYSLOG)
        to.send(f"<{_DAEMON_WARNING}>{stamp} {text}".encode())
