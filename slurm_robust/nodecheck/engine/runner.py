"""Runs checks and collects their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from slurm_robust.nodecheck.engine import check_state
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status, shorten
from slurm_robust.nodecheck.engine.isolate import Outcome, Task, no_progress, run_all
from slurm_robust.nodecheck.engine.registry import Check

_MAX_CHARS = 2000
_ASK = "run `srobust check --only {name} --json` on the node; if it happens again, report it as a bug of slurm_robust"


def run(
    checks: Sequence[Check],
    context: Context,
    chosen: Mapping[str, Mapping[str, Any]],
    deadline_s: float,
    progress: Callable[[Sequence[str]], None] = no_progress,
) -> NodeReport:
    """Run the checks: the checks of one lane one after another, all lanes at once, and no check in this process.

    `chosen` has the site's options by check, `deadline_s` is for each check without a deadline of its own. `progress`
    is called after each answer, with the names that have not answered yet.

    Raises:
        CheckError: an option that does not exist or has the wrong type; nothing was run then.
    """
    settings = {check.name: check.settings(chosen.get(check.name, {})) for check in checks}
    tasks = {}
    shared: dict[str, Any] = {}  # filled in the lanes' own processes; empty here
    for check in checks:
        seconds = check.deadline_s or deadline_s
        own = replace(context, deadline_s=seconds, shared=shared)
        tasks[check.name] = Task(partial(check.probe, own, settings[check.name]), seconds, check.lane)
    outcomes = run_all(tasks, progress)
    results = []
    for check in checks:
        outcome = outcomes[check.name]
        finding = _finding(check, outcome, settings[check.name], tasks[check.name].deadline_s)
        conditions = _conditions(check, outcome, settings[check.name])
        results.append(Result(check.name, finding, outcome.duration_s * 1000, conditions))
        if check.remember is not None and not outcome.error and context.cache_dir is not None:
            _remember(check, outcome.value, settings[check.name], context)
    return NodeReport(context.node, context.stage, tuple(results))


def _finding(check: Check, outcome: Outcome, settings: Mapping[str, Any], seconds: float) -> Finding:
    if outcome.timed_out:
        sentence = f"{check.name} did not answer within {seconds:g} s"
        return Finding(
            Status.UNKNOWN, "probe_timeout", sentence, f"look for a dead mount or a hung driver: {check.reads}"
        )
    if outcome.error:
        sentence = shorten(f"{check.name} could not read its facts: {outcome.error}")
        return Finding(Status.UNKNOWN, "probe_error", sentence, _ASK.format(name=check.name))
    try:
        return _printable(check.judge(outcome.value, settings))
    except Exception as error:  # noqa: BLE001 (our own errors are never a verdict on the node)
        sentence = shorten(f"{check.name} could not judge: {type(error).__name__}: {error}")
        return Finding(Status.UNKNOWN, "judge_error", sentence, _ASK.format(name=check.name), {"facts": outcome.value})


def _printable(finding: Finding) -> Finding:
    """Return the finding without characters that a terminal interprets: names of processes and files may have any."""
    sentence, remedy = (shorten(text, _MAX_CHARS) for text in (finding.sentence, finding.remedy))
    same = (sentence, remedy) == (finding.sentence, finding.remedy)
    return finding if same else replace(finding, sentence=sentence, remedy=remedy)


def _conditions(check: Check, outcome: Outcome, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    if check.valid_while is None or outcome.error:
        return ()
    try:
        return tuple(check.valid_while(outcome.value, settings))
    except Exception:  # noqa: BLE001 (then the verdict is not cached)
        return (("never",),)


def _remember(check: Check, facts: Any, settings: Mapping[str, Any], context: Context) -> None:
    assert check.remember is not None
    assert context.cache_dir is not None
    try:
        kept = check.remember(facts, settings)
    except Exception:  # noqa: BLE001 (the finding already says what is wrong with these facts)
        return
    if kept is not None:
        check_state.save(context.cache_dir, check.name, kept)
