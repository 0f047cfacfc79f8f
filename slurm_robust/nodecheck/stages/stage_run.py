"""Runs one stage in full (prolog, epilog, health check): all of its checks, and what follows from the result."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.engine import check_state, choices, history, isolate, registry, runner
from slurm_robust.nodecheck.engine.context import Context, job_choice_of, job_of, node_name
from slurm_robust.nodecheck.engine.counters import uptime_s
from slurm_robust.nodecheck.engine.finding import Fitness, NodeReport, Status, shorten
from slurm_robust.nodecheck.nvml import judging
from slurm_robust.nodecheck.stages import cached_verdict

EXIT_DONE, EXIT_CONFIG = 0, 2
FIRST_USER_ID = 1000
"""Accounts below it are the system's (useradd's own convention); those above are people."""

SECOND_RUN_S = 1.0
CONF_TIMEOUT_S = 1.0
LINE_MAX_CHARS = 1000
SYSLOG = "/dev/log"
SIGHT, FULL = "gpu_sight", "full_mounts"
"""The names of files in `nodecheck.cache_dir` with the last report of invisible GPUs, and of full file systems."""
_DAEMON_WARNING = 3 << 3 | 4
"""Facility and severity, as syslog(3) packs them."""

Log = Callable[[str], None]


def main(stage: str, config: str, *, verbose: bool = False, why: str = "", again: str = "") -> int:
    """Run the stage's checks, and let the job start or not.

    Args:
        stage: `prolog`, `epilog` or `periodic`.
        config: The configuration's path.
        verbose: Print one line also where all is well.
        why: Why there is no valid cached verdict.
        again: JSON, checks and their options: the cached verdict is valid, and only these must run.

    Returns:
        As `fast_path.main`.
    """
    env = os.environ
    node = node_name(env)
    log = logger(f"srobust-{stage}", env)
    try:
        # Loading the checks takes as long as parsing YAML does: both are done at once.
        chosen = choices.load(config, node, lambda: registry.preload(stage))
        if not chosen.enabled:
            return EXIT_DONE
        context = chosen.context(node, stage, env)
        if again and (names := _run_again(again, chosen, context)):
            if verbose:
                print(f"srobust-{stage}: cached verdict, and {names} ran again", file=sys.stderr)
            return EXIT_DONE
        for name in chosen.options:
            registry.require(name)
        checks = registry.select(stage, (), chosen.disable)
        report, code = _run(checks, chosen, context, config, log)
    except (choices.ConfigRejected, registry.CheckError) as error:
        print(f"srobust-{stage}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    if verbose:
        because = f" (no cached verdict: {why})" if why else ""
        summary = f"{report.node}: {report.verdict.value}, {len(report.results)} checks{because}"
        print(f"srobust-{stage}: {summary}", file=sys.stderr)
    return code


def _run_again(names: str, chosen: choices.Choices, context: Context) -> str:
    """Run these checks alone; their names, or empty if one found anything, so that the full run must report it."""
    options: dict[str, Any] = json.loads(names)
    report = runner.run([registry.get(name) for name in options], context, options, chosen.deadline_s)
    if any(result.finding.status not in (Status.PASS, Status.SKIP) for result in report.results):
        return ""
    return ", ".join(options)


def _run(
    checks: list[registry.Check], chosen: choices.Choices, context: Context, config: str, log: Log
) -> tuple[NodeReport, int]:
    """Run the checks; return the report, weighed with earlier runs, and the exit code."""
    assert context.cache_dir is not None
    log_end = cached_verdict.log_position(context.kmsg)
    settings = {check.name: check.settings(chosen.options.get(check.name, {})) for check in checks}
    found = runner.run(checks, context, chosen.options, chosen.deadline_s)
    report, kept = history.weigh(
        _second_run(found, checks, chosen, context, log),
        check_state.load(context.cache_dir, history.NAME),
        settings,
        boot_id=context.boot_id(),
        now_s=uptime_s(),
        job_id=context.job_id,
    )
    if kept["checks"] or (context.cache_dir / f"{history.NAME}.json").exists():
        saved = check_state.save(context.cache_dir, history.NAME, kept)
        if not saved and os.geteuid() == 0:
            log(f"{report.node}: cannot write to {context.cache_dir}: strikes and counters do not add up")
    if context.stage == "epilog":
        # An epilog runs fewer checks than a prolog: it leaves the cached verdict as it is, or removes it.
        if found.verdict is not Fitness.FIT or any(r.finding.status is Status.WARN for r in found.results):
            check_state.remove(context.cache_dir, state_folder.VERDICT)
    else:
        cached_verdict.save(found, checks, chosen, context, config, log_end=log_end)
    for result in report.results:
        if "look" in result.finding.evidence and result.finding.status is Status.WARN:
            log(f"{report.node}: {result.finding.sentence}: does not count yet")
    if context.stage == "periodic":
        _tell_sight(report, context.cache_dir, config, log)
        _tell_full(report, context.cache_dir, config, log)
    if report.verdict is Fitness.UNFIT:
        return report, _act(report, config, log)
    if report.verdict is Fitness.UNKNOWN:
        log(f"{report.node}: could not be checked, the job may start: {report.sentence}")
    return report, EXIT_DONE


def _second_run(
    found: NodeReport, checks: list[registry.Check], chosen: choices.Choices, context: Context, log: Log
) -> NodeReport:
    """Run failed checks that need several strikes in the health check once more, before and after a job.

    A fault that comes and goes (a link, a full disk) is gone a moment later; a fault that stays counts.
    """
    doubtful = [
        check
        for check, result in zip(checks, found.results, strict=True)
        if result.finding.status is Status.FAIL
        and check.settings(chosen.options.get(check.name, {})).get(history.STRIKES, 1) > 1
    ]
    if context.stage == "periodic" or not doubtful:
        return found
    import time  # noqa: PLC0415 (most runs do not need it)

    time.sleep(SECOND_RUN_S)
    again = {r.name: r for r in runner.run(doubtful, context, chosen.options, chosen.deadline_s).results}
    for result in found.results:
        if result.name in again and again[result.name].finding.status is not Status.FAIL:
            log(f"{found.node}: {result.finding.sentence}: not so a second later, does not count")
    return replace(found, results=tuple(again.get(result.name, result) for result in found.results))


def _tell_sight(report: NodeReport, cache_dir: Path, config: str, log: Log) -> None:
    """Let the daemon know that the GPUs cannot be seen from here, or can again; a call only where that is news.

    Only the health check does: nothing waits for it.
    """
    blind = (r.finding.sentence for r in report.results if r.finding.reason in judging.BLIND)
    unseen = any(r.name.startswith("gpu_") and r.finding.status is Status.UNKNOWN for r in report.results)
    # Not blind for the old reason is not seen either.
    _tell_news(report.node, (cache_dir, SIGHT), next(blind, None if unseen else ""), config, log)


def _tell_full(report: NodeReport, cache_dir: Path, config: str, log: Log) -> None:
    """Let the daemon know, in the same way, which of the site's mounts are full here: all nodes may share them."""
    from slurm_robust.nodecheck.checks.host import filesystem  # noqa: PLC0415 (which no saved verdict needs)

    found = next((r.finding for r in report.results if r.name == "filesystem"), None)
    if found is not None:
        reason = ", ".join(filesystem.full_mounts(found.evidence))
        unsure = found.status is Status.UNKNOWN and not reason
        _tell_news(report.node, (cache_dir, FULL), None if unsure else reason, config, log)


def _tell_news(node: str, told: tuple[Path, str], reason: str | None, config: str, log: Log) -> None:
    """Tell the daemon by a marker; an empty reason removes it, and None (not known) leaves it.

    `told`: the folder and name of the last report.
    """
    from slurm_robust.marks import blind_marker  # noqa: PLC0415 (no prolog needs it)

    cache_dir, name = told
    kept, now_s = check_state.load(cache_dir, name), uptime_s()
    told_s = kept.get("at_s")
    fresh = isinstance(told_s, float) and 0 <= now_s - told_s < blind_marker.RENEWED_S
    if reason is None or ((kept.get("reason") == reason and fresh) if reason else not kept):
        return
    whole = choices.read(config)
    distrust_slurm_conf(os.environ, log)
    from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (a node that sees its GPUs needs no Slurm)

    kind = blind_marker.BLIND if name == SIGHT else blind_marker.FULL
    if problem := gate.tell_blind(node, reason, whole, kind=kind):
        about = "GPUs that cannot be seen" if name == SIGHT else "full file systems"
        log(f"{node}: srobustd cannot be told of {about}{f' ({reason})' if reason else ''}: {problem}")
    elif reason:
        check_state.save(cache_dir, name, {"reason": reason, "at_s": now_s})
    else:
        check_state.remove(cache_dir, f"{name}.json")


def _act(report: NodeReport, config: str, log: Log) -> int:
    """Act on an unfit node: that needs Slurm, and the whole configuration."""
    whole = choices.read(config)
    distrust_slurm_conf(os.environ, log)
    from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (a fit node needs no Slurm)

    return gate.act(report, whole, log, job_id=job_of(os.environ))


def distrust_slurm_conf(env: os._Environ[str] | dict[str, str], log: Log | None = None) -> None:
    """Unset `SLURM_CONF` if it names a file that a person may write or replace.

    Slurm's commands load the plugins that the file names. `log` gets a line that says which place is a person's.

    slurmd sets the variable for its scripts, so this matters only if somebody else controls the environment.
    """
    path = env.get("SLURM_CONF")
    if path is None or os.geteuid() != 0:
        return
    # In a process of its own: the file may be on a file server that does not answer.
    task = isolate.Task(lambda: _not_the_system_s(path), CONF_TIMEOUT_S)
    place = isolate.run_all({"conf": task})["conf"].value
    if place == "":
        return
    del env["SLURM_CONF"]
    if log is not None:
        why = f"others may write {place}" if place else "it cannot be read"
        log(f"SLURM_CONF={path} is not used: {why}")


def _not_the_system_s(path: str) -> str:
    """Return the file, or a folder on the way to it, that a person owns or may write; empty if there is none."""
    if not path.startswith("/"):
        return path or "it"
    return state_folder.foreign_place(path, lambda uid: uid < FIRST_USER_ID)


def logger(name: str, env: Mapping[str, str]) -> Log:
    """Return a function that writes one printable line to stderr (slurmd logs it) and to syslog."""
    job_id = job_of(env)
    choice = job_choice_of(env)
    about = f"job {job_id}{f' ({choice})' if choice else ''}: " if job_id is not None else ""

    def log(line: str) -> None:
        text = shorten(f"{about}{line}", LINE_MAX_CHARS)
        print(f"{name}: {text}", file=sys.stderr)
        _to_syslog(f"{name}: {text}")

    return log


def _to_syslog(text: str) -> None:
    """Send one line without ever waiting: syslog(3) blocks on a logger that hangs, and the job with it."""
    import socket  # noqa: PLC0415 (most runs log nothing)
    import time  # noqa: PLC0415 (the same)

    stamp = time.strftime("%b %e %H:%M:%S")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.connect(SYSLOG)
        to.send(f"<{_DAEMON_WARNING}>{stamp} {text}".encode())
