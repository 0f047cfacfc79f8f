"""Makes an incident's card on the first page, and its own page with stages, plan and actions. Pure."""

from __future__ import annotations

from slurm_robust.core.text import first_sentence
from slurm_robust.daemon.api.dashboard.pieces import (
    DASH,
    Row,
    age,
    cell,
    incident_link,
    local_date,
    moment,
    nothing,
    row,
    row_id,
)
from slurm_robust.daemon.api.dashboard.stages import NAMES, is_open, short, stage_list, stamps
from slurm_robust.daemon.api.dashboard.tree import Board, Element, Section, element

ACTIONS_ON_CARD = 4
GOOD = frozenset({"running", "resumed", "went_on", "came_back", "ended"})
MEANINGS = {
    "": "under way",
    "open": "under way",
    "running": "runs again, first step awaited",
    "resumed": "trains again",
    "ended": "job has ended",
    "not_started": "job did not start",
    "aborted": "given up",
    "refused": "refused",
    "observed": "only observed",
    "came_back": "came back by itself",
    "went_on": "went on by itself",
    "superseded": "overtaken by a newer one",
    "stopped": "stopped for good",
    "alerted": "only announced",
}
"""Outcome → in words."""


def of_key(snapshot: Row, key: str) -> Row | None:
    """Return the incident of this key, if the snapshot has it."""
    return next((i for i in snapshot.get("incidents", ()) if isinstance(i, dict) and i.get("key") == key), None)


def badge(incident: Row) -> Element:
    """Return the state of an incident, in words and in a colour."""
    outcome, state = str(incident.get("outcome") or ""), str(incident.get("state") or "")
    colour = "warn" if is_open(incident) else "good" if outcome in GOOD else "bad"
    known = outcome or state
    return element("b", MEANINGS.get(known, known.replace("_", " ")), class_=f"badge {colour}")


def headline(incident: Row) -> str:
    """Return one sentence: what is at fault, or how the incident ended if it did not end well."""
    verdict = _part(incident, "verdict")
    outcome = str(incident.get("outcome") or "")
    well = outcome in ("", "running", "resumed", "observed")
    reason = str(incident.get("reason") or "")
    return first_sentence(str((verdict.get("why") if well else reason) or reason or verdict.get("why") or "")) or DASH


def card(incident: Row) -> Element:
    """Return a card with the present state of one incident."""
    plan, verdict = _part(incident, "plan"), _part(incident, "verdict")
    actions: list[Row] = [a for a in incident.get("actions", ()) if isinstance(a, dict)]
    suspects = ", ".join(map(str, plan.get("evict") or verdict.get("suspects") or ()))
    job, user = str(incident.get("job", "")), str(incident.get("user", ""))
    return element(
        "article",
        element(
            "h3",
            incident_link(incident, f"Job {job} of {user}" if user else f"Job {job}"),
            " ",
            badge(incident),
            " ",
            age(incident.get("opened_at_s")),
        ),
        element("p", headline(incident)),
        element("p", element("b", "Suspects: "), suspects) if suspects else None,
        stage_list(incident),
        element("ul", *[_step(a) for a in _now(actions)], class_="actions") if actions else None,
        id=row_id("i", incident.get("key")),
        class_="card",
    )


def _now(actions: list[Row]) -> list[Row]:
    """Return the last actions that were begun, and the next one."""
    begun = [a for a in actions if a.get("called_at_s") or a.get("done_at_s") or a.get("error")]
    return begun[-ACTIONS_ON_CARD:] + [a for a in actions if a not in begun][:1]


def _step(action: Row) -> Element:
    what = f"{str(action.get('kind', '')).replace('_', ' ')} {action.get('target', '')}".strip()
    return element("li", f"{what}: {_came_to(action)}", class_=_colour(action))


def _came_to(action: Row) -> str:
    if action.get("done_at_s"):
        return "done"
    if _needless(action):
        return str(action["error"])
    if action.get("error"):
        return f"not done yet: {action['error']}"
    if action.get("called_at_s"):
        return "asked Slurm, not shown yet"
    return "to come"


def _needless(action: Row) -> bool:
    """Return whether the action was planned and then not needed; older journals have `none needed`."""
    return str(action.get("error") or "").startswith(("not needed", "none needed"))


def _colour(action: Row) -> str:
    if _needless(action):
        return "later"
    return "done" if action.get("done_at_s") else "bad" if action.get("error") else "later"


def board(incident: Row) -> Board:
    """Return the page of one incident."""
    story = element("div", stage_list(incident), data_key="story")
    sections = [
        Section("head", _head(incident)),
        Section("facts", _facts(incident), tag="dl", attributes={"class": "facts"}),
        Section("story", {"story": story}, attributes={"aria-live": "polite"}),
        Section("stages", _stage_rows(incident), tag="tbody", attributes={"role": "rowgroup"}),
        Section("actions", _action_rows(incident), tag="tbody", attributes={"role": "rowgroup"}),
    ]
    return Board(f"Job {incident.get('job', '')}: {_words(incident)}", {s.id: s for s in sections})


def _words(incident: Row) -> str:
    known = str(incident.get("outcome") or incident.get("state") or "")
    return MEANINGS.get(known, known.replace("_", " "))


def _head(incident: Row) -> dict[str, Element]:
    job, user = str(incident.get("job", "")), str(incident.get("user", ""))
    return {
        "title": element("h1", f"Job {job}", f" of {user}" if user else None, " ", badge(incident), data_key="title"),
        "what": element("p", headline(incident), class_="lead", data_key="what"),
    }


def _facts(incident: Row) -> dict[str, Element]:
    verdict, plan, attempt = (_part(incident, key) for key in ("verdict", "plan", "attempt"))
    suspects = ", ".join(map(str, verdict.get("suspects") or ()))
    confidence = verdict.get("confidence")
    sure = f", {100 * confidence:.0f} % sure" if isinstance(confidence, int | float) and confidence else ""
    facts: dict[str, str] = {
        "incident": str(incident.get("id", "")),
        "opened": local_date(float(incident.get("opened_at_s") or 0)),
        "came to": str(incident.get("reason") or _words(incident)),
        "verdict": f"{verdict.get('conclusion') or 'none'}{f': {suspects}' if suspects else ''}{sure}",
        "why": str(verdict.get("why") or ""),
        "plan": _plan(plan, str(incident.get("mode", ""))),
        "reason": "" if plan.get("reason") == verdict.get("why") else str(plan.get("reason") or ""),
        "without": ", ".join(map(str, plan.get("evict") or ())),
        "from standby": ", ".join(map(str, plan.get("standby") or ())),
        "seat": str(plan.get("seat") or ""),
        "attempt": f"{int(attempt.get('restart_count') or 0) + 1} of lineage {incident.get('lineage') or DASH}",
        "report": str(incident.get("report") or ""),
    }
    return {
        row_id("f", name): element("div", element("dt", name), element("dd", text), data_key=row_id("f", name))
        for name, text in facts.items()
        if text
    }


def _plan(plan: Row, mode: str) -> str:
    if not plan:
        return "none"
    road = str(plan.get("road", "")).replace("_", " ")
    return f"{road} (observe mode: nothing was done)" if mode == "observe" else road


def _stage_rows(incident: Row) -> dict[str, Element]:
    done = stamps(incident)
    rows = {}
    last_s = first_s = done[0][1] if done else 0.0
    whole_s = (done[-1][1] - first_s if done else 0.0) or 1.0
    for key, at_s in done:
        begin, width = 100 * (last_s - first_s) / whole_s, 100 * (at_s - last_s) / whole_s
        bar = element(
            "svg",
            element("rect", x=round(begin, 2), y=0, width=max(0.6, round(width, 2)), height=10),
            viewBox="0 0 100.6 10",
            preserveAspectRatio="none",
            aria_hidden="true",
            class_="bar",
        )
        rows[row_id("s", key)] = row(
            row_id("s", key),
            cell("stage", element("b", NAMES.get(key, key))),
            cell("when", moment(at_s), class_="number"),
            cell("after the last", f"+{short(at_s - last_s)}", class_="number"),
            cell("since the first", short(at_s - first_s), class_="number"),
            cell("", bar, class_="wide"),
        )
        last_s = at_s
    return rows or nothing("No time is known.", 5)


def _action_rows(incident: Row) -> dict[str, Element]:
    plan = _part(incident, "plan")
    rows = {}
    for number, action in enumerate(a for a in incident.get("actions", ()) if isinstance(a, dict)):
        reason = str(action.get("reason") or "")
        planned = bool(action.get("planned", True))
        rows[f"a-{number}"] = row(
            f"a-{number}",
            cell("called", moment(action.get("called_at_s")), class_="number"),
            cell("action", element("b", str(action.get("kind", "")).replace("_", " ")), None if planned else " *"),
            cell("on", str(action.get("target", ""))),
            cell("came to", _came_to(action), class_=_colour(action)),
            cell("reason", "as planned" if reason and reason == plan.get("reason") else reason or DASH, class_="wide"),
        )
    return rows or nothing("The daemon has done nothing about it.", 5)


def _part(incident: Row, key: str) -> Row:
    value = incident.get(key)
    return value if isinstance(value, dict) else {}
