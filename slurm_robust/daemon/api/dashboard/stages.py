"""Lists an incident's stages, from the last progress to the next step: stages so far, and the expected ones. Pure."""

from __future__ import annotations

from slurm_robust.core.text import duration
from slurm_robust.daemon.api.dashboard.pieces import Row, local_date, local_time
from slurm_robust.daemon.api.dashboard.tree import Element, element
from slurm_robust.policy.cluster.stage_times import back_s

NAMES = {
    "fault": "last progress",
    "suspected": "suspected",
    "captured": "stacks captured",
    "localised": "verdict",
    "decided": "plan",
    "accepted": "accepted by the daemon",
    "stopped": "step stopped",
    "tests_started": "node tests began",
    "tests_done": "node tests ended",
    "running": "runs again",
    "imports_done": "imports done",
    "process_groups_ready": "process groups ready",
    "checkpoint_loaded": "checkpoint loaded",
    "first_new_step": "first step",
}
"""Key of an incident's times → its name, in the order of `docs/json.md`."""
EXPECTED = ("decided", "accepted", "stopped", "running", "first_new_step")
"""The stages that are expected while an incident is under way."""


def stamps(incident: Row) -> list[tuple[str, float]]:
    """Return (key, seconds since the epoch) of each stamp, in order of time."""
    times = incident.get("times")
    known = {k: float(v) for k, v in times.items() if isinstance(v, int | float)} if isinstance(times, dict) else {}
    order = list(NAMES)
    return sorted(known.items(), key=lambda t: (t[1], order.index(t[0]) if t[0] in NAMES else len(order)))


def is_open(incident: Row) -> bool:
    """True while something is still awaited of it."""
    return incident.get("state") != "closed"


def stage_list(incident: Row) -> Element:
    """Return the stages as a list: each with its time, and its distance from the stage before."""
    done = stamps(incident)
    items = []
    last_s = done[0][1] if done else 0.0
    for key, at_s in done:
        after = f"+{short(at_s - last_s)}" if at_s != done[0][1] else local_time(at_s)
        name = NAMES.get(key, key)
        items.append(element("li", element("b", name), element("span", after, title=local_date(at_s)), class_="done"))
        last_s = at_s
    if is_open(incident):
        reached = max((EXPECTED.index(key) for key, _ in done if key in EXPECTED), default=-1)
        coming = EXPECTED[reached + 1 :]
        items += [
            element("li", element("b", NAMES[key]), class_="next" if key == coming[0] else "later") for key in coming
        ]
    return element("ol", *items, class_="stages", aria_label="Stages")


def short(seconds: float) -> str:
    """Return a pause between two stages in words: a short one to the tenth of a second."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def back_after(incident: Row) -> str:
    """Return the time from the fault to the first step after it, as in the metrics; empty if there was no step."""
    took_s = back_s(dict(stamps(incident)))
    return "" if took_s is None else short(took_s)
