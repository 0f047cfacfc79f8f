"""Makes the first page: what needs a person, incidents under way, trainings, nodes, drains, pools. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.core.text import NODE_NAME
from slurm_robust.core.training_time import Spent
from slurm_robust.daemon.api.dashboard import nodes as squares
from slurm_robust.daemon.api.dashboard.incident import badge, card, headline
from slurm_robust.daemon.api.dashboard.pieces import (
    DASH,
    Row,
    age,
    cell,
    incident_link,
    moment,
    note,
    nothing,
    percent,
    row,
    row_id,
    seconds,
    with_command,
)
from slurm_robust.daemon.api.dashboard.stages import back_after, is_open
from slurm_robust.daemon.api.dashboard.tree import Board, Element, Piece, Section, element
from slurm_robust.daemon.api.needs import incident_of, needs
from slurm_robust.slurm.values import fold

DRAINS_MAX = 50
TOGETHER_S = 60.0
"""Nodes that went for the same reason within so long share a row."""
RECENT_MAX = 8
OPEN_MAX = 60
"""Incidents under way that have a card; of more, how many."""
TRAININGS_MAX = 500
SPENT_PX = 200
"""The bar of a training's time is so wide, in its own units."""


def board(snapshot: Row) -> Board:
    """Make the board of the first page from a snapshot."""
    nodes: list[Row] = [n for n in snapshot.get("nodes", ()) if isinstance(n, dict) and isinstance(n.get("name"), str)]
    incidents: list[Row] = [i for i in snapshot.get("incidents", ()) if isinstance(i, dict)]
    wanted = needs(_whole(snapshot), float(snapshot.get("at_s", 0.0)))
    under_way = [i for i in incidents if is_open(i)]
    sections = [
        Section("state", _state(snapshot), attributes={"class": "state"}),
        Section("needs", _needs(wanted), tag="ul", attributes={"class": "needs", "aria-labelledby": "needs-title"}),
        Section("open", _open(under_way), attributes={"class": "cards", "aria-live": "polite"}),
        _table("trainings", _trainings(snapshot)),
        Section("legend", squares.legend(nodes), tag="ul", attributes={"class": "legend"}),
        *squares.grids(nodes),
        _table("drains", _drains(nodes)),
        _table("pools", _pools(snapshot)),
        _table("recent", _recent([i for i in incidents if not is_open(i)])),
    ]
    cluster = str(snapshot.get("cluster") or "slurm_robust")
    alarm = f"({len(wanted)}) " if wanted else ""
    return Board(f"{alarm}{cluster}", {s.id: s for s in sections})


def _whole(snapshot: Row) -> dict[str, Any]:
    """Return the snapshot with every key that `needs` reads: it may be of an older daemon, or not there yet."""
    whole = {"at_s": 0.0, **snapshot, "breaker": {"open": False, "why": "", **snapshot.get("breaker", {})}}
    for name, least in _OLDEST.items():
        whole[name] = [{**least, **known} for known in snapshot.get(name, ()) if isinstance(known, dict)]
    ours = [node for node in snapshot.get("nodes", ()) if node.get("owner") == "srobust"]
    return {**whole, "nodes": ours}


_OLDEST: Mapping[str, Row] = {
    "jobs": {"job": "", "user": "", "incident": "", "suspected_at_s": None},
    "waiting": {"job": "", "reason": ""},
    "incidents": {"job": "", "id": "", "outcome": ""},
    "standby": {"short": 0},
}
"""The fields of each row that `needs` reads, with values for rows that lack them."""


def _table(name: str, rows: Mapping[str, Element]) -> Section:
    return Section(name, rows, tag="tbody", attributes={"role": "rowgroup"})


def _state(snapshot: Row) -> dict[str, Element]:
    mode, breaker = str(snapshot.get("mode", "")), snapshot.get("breaker", {})
    acts, tripped = mode == "act", bool(breaker.get("open"))
    meaning = "plans are carried out" if acts else "plans are only written down, nothing is done"
    drains = f"no node is drained: {breaker.get('why', '')}" if tripped else "nodes may be drained"
    if (lease := snapshot.get("lease", {})).get("standing_by"):
        mode, acts = "standing by", False
        meaning = f"this daemon does nothing; the one on {lease['host']} acts" if lease["host"] else "asks who acts"
    parts = {
        "mode": _flag("mode", mode.upper() or DASH, "good" if acts else "warn", meaning),
        "breaker": _flag("breaker", *(("BREAKER OPEN", "bad") if tripped else ("BREAKER CLOSED", "good")), drains),
    }
    if lost := snapshot.get("lost_gres"):
        names = ", ".join(map(str, lost[:8])) + (" …" if len(lost) > 8 else "")
        parts["lost"] = _flag(
            *("lost", "LOST GRES", "warn", f"{names}: no job runs there, but Slurm counts GPUs as used:"),
            element("code", "scontrol reconfigure", class_="command"),
        )
    return parts


def _flag(key: str, name: str, colour: str, meaning: str, *more: Piece) -> Element:
    return element("p", element("b", name, class_=f"badge {colour}"), f" {meaning} ", *more, data_key=key)


def _needs(wanted: list[str]) -> dict[str, Element]:
    if not wanted:
        return {"nothing": element("li", "Nothing needs a person now.", class_="calm", data_key="nothing")}
    # A sentence with a duration in it changes all the time, and stays the same row.
    rows = [element("li", *with_command(text), data_key=f"need-{n}") for n, text in enumerate(wanted)]
    return {f"need-{n}": row for n, row in enumerate(rows)}


def _open(incidents: list[Row]) -> dict[str, Element]:
    if not incidents:
        return {"nothing": element("p", "No incident is under way.", class_="calm", data_key="nothing")}
    cards = {row_id("i", i.get("key")): card(i) for i in incidents[:OPEN_MAX]}
    if len(incidents) > OPEN_MAX:
        more = f"{len(incidents) - OPEN_MAX} more incidents are under way: "
        cards["more"] = element("p", more, element("code", "srobust incidents", class_="command"), data_key="more")
    return cards


def _trainings(snapshot: Row) -> dict[str, Element]:
    jobs = [j for j in snapshot.get("jobs", ()) if isinstance(j, dict)]
    waiting = [j for j in snapshot.get("waiting", ()) if isinstance(j, dict)]
    # Those that something is wrong with come first.
    jobs.sort(key=lambda j: (not j.get("suspected_at_s"), j.get("claim") == "watching"))
    incidents = [{**_OLDEST["incidents"], **i} for i in snapshot.get("incidents", ()) if isinstance(i, dict)]
    rows = {row_id("t", j.get("job")): _training(j, incidents) for j in jobs[:TRAININGS_MAX]}
    rows |= {row_id("w", j.get("job")): _waiting(j) for j in waiting[:TRAININGS_MAX]}
    more = len(jobs) + len(waiting) - len(rows)
    if more > 0:
        rows["more"] = note("more", 9, f"{more} more: ", element("code", "srobust status", class_="command"))
    return rows or nothing("No training supervises itself now (srobust run, or sbatch --robust).", 9)


def _training(job: Row, incidents: Sequence[Row]) -> Element:
    suspected = job.get("suspected_at_s")
    if suspected and job.get("claim") == "watching":
        says: list[Piece] = [element("b", "suspects a fault", class_="badge bad"), " ", age(suspected)]
    elif job.get("claim") == "wants":
        says = [element("b", "asks for a requeue", class_="badge warn")]
    else:
        says = ["trains" if job.get("claim") == "watching" else str(job.get("claim", ""))]
    if job.get("still_since_s"):
        says += [", stacks still ", age(job["still_since_s"])]
    if job.get("restart_count"):
        says.append(f", attempt {int(job['restart_count']) + 1}")
    incident = incident_of(job, incidents)
    if incident is not None:
        says += [", ", incident_link(incident, "incident")]
    return row(
        row_id("t", job.get("job")),
        *_who(job),
        *_figures(job),
        cell("says", *says, class_="wide"),
        class_="alarm" if suspected else None,
    )


def _figures(job: Row) -> tuple[Element, ...]:
    step, spent = job.get("step"), job.get("spent")
    return (
        # It was told with the last report, up to a minute ago: the page's own age says nothing of that.
        _figure("step", str(step) if isinstance(step, int) and step >= 0 else DASH, age(job.get("step_at_s"))),
        _figure("s/step", seconds(job.get("speed_s"))),
        _figure("ETTR 1 h", percent(job.get("ettr_hour"))),
        _figure("ETTR", percent(job.get("ettr"))),
        cell("time went into", _spent(spent) if isinstance(spent, dict) and spent else DASH, class_="spend"),
    )


def _figure(label: str, text: str, since: Element | str = "") -> Element:
    told = (" ", element("small", since)) if since and text != DASH else ()
    return cell(label, text, *told, class_="number empty" if text == DASH else "number")


def _waiting(job: Row) -> Element:
    says = cell("says", f"waits to start: {job.get('reason', '')}", class_="wide")
    return row(row_id("w", job.get("job")), *_who(job), *_figures(job), says)


def _who(job: Row) -> tuple[Element, ...]:
    name, user = str(job.get("name") or ""), str(job.get("user") or "")
    return (
        cell("job", element("b", str(job.get("job", ""))), f" {name}" if name else None, class_="who"),
        cell("user", user or DASH),
        cell("nodes", str(job.get("nodes") or DASH), class_="nodes"),
    )


def _spent(spent: Mapping[str, Any]) -> Element:
    """Return the use of a training's time as a bar; the bar's name says the same in words."""
    known = [(s.value, float(spent.get(s.value) or 0.0)) for s in Spent]
    whole = sum(value for _, value in known) or 1.0
    words = ", ".join(f"{name} {100 * v / whole:.1f} %" for name, v in known if v > 0)
    bars, before = [], 0.0
    for name, value in known:
        # Whole units: the bar of a long training changes seldom, though its time goes on.
        x, before = round(SPENT_PX * before / whole), before + value
        if width := round(SPENT_PX * before / whole) - x:
            bars.append(element("rect", x=x, y=0, width=width, height=10, class_=f"spent-{name}"))
    box = f"0 0 {SPENT_PX} 10"
    picture = element("svg", *bars, viewBox=box, preserveAspectRatio="none", aria_hidden="true", class_="spent")
    return element("span", picture, role="img", aria_label=words, title=words)


def _drains(nodes: list[Row]) -> dict[str, Element]:
    """Nodes out of service or in quarantine, the newest first; a rack that went at once has one row."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for node in nodes:
        if node.get("node_state") in ("drained", "quarantine"):
            minute = str(int((node.get("since_s") or 0) // TOGETHER_S))
            key = (squares.shown_state(node), _by(node), _evidence(node), minute)
            groups.setdefault(key, []).append(node)
    out = sorted(groups.items(), key=lambda g: (-(g[1][0].get("since_s") or 0), str(g[1][0]["name"])))
    rows = {row_id("d", members[0]["name"]): _drain(members, *key[:3]) for key, members in out[:DRAINS_MAX]}
    if more := sum(len(members) for _, members in out[DRAINS_MAX:]):
        command = element("code", "srobust nodes --state drained", class_="command")
        rows["more"] = note("more", 5, f"{more} more nodes: ", command)
    return rows or nothing("Every node is in service.", 5)


def _drain(members: list[Row], state: str, by: str, evidence: str) -> Element:
    first, names = members[0], [str(n["name"]) for n in members]
    what = {"quarantine": "quarantine", "drained": "drained"}.get(state, str(first.get("state", "")).lower())
    jobs = sorted({str(n["job"]) for n in members if n.get("job")})
    if jobs:
        evidence += f"; job {', '.join(jobs[:3])}{' …' if len(jobs) > 3 else ''} is still there"
    count = f" {len(members)} nodes" if len(members) > 1 else None
    return row(
        row_id("d", first["name"]),
        cell(
            "node",
            element("i", class_=f"square {state}", aria_hidden="true"),
            element("b", _folded(names)),
            element("small", count) if count else None,
            class_="who",
        ),
        cell("state", what),
        cell("by", by),
        cell("since", moment(first.get("since_s")), " ", age(first.get("since_s")), class_="when"),
        cell("evidence", evidence, class_="wide"),
    )


def _folded(names: list[str]) -> str:
    if len(names) > 1 and all(NODE_NAME.match(name) for name in names):
        return fold(names)
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


def _by(node: Row) -> str:
    return {"foreign": "somebody else", "slurm": "Slurm"}.get(str(node.get("owner", "")), "srobust")


def _evidence(node: Row) -> str:
    parts = [str(node.get("reason") or node.get("word") or DASH)]
    if repair := node.get("repair"):
        try_, of, doing = (repair.get(key, "") for key in ("try", "of", "doing"))
        parts.append(f"(repair by {repair.get('remedy', '')}, try {try_} of {of}: {doing})")
    if strikes := int(node.get("strikes") or 0):
        parts.append(f"({strikes} strike{'s' if strikes > 1 else ''})")
    return " ".join(parts)


def _pools(snapshot: Row) -> dict[str, Element]:
    rows = {}
    for pool in snapshot.get("standby", ()):
        name, short = str(pool.get("name", "")), int(pool.get("short") or 0)
        members, unchecked = pool.get("nodes", ()), str(pool.get("unchecked") or "")
        kind = re.sub(r"\([^)]*\)", "", str(pool.get("gres", "")))
        status = f"lacks {short}" if short else "full"
        rows[row_id("p", name)] = row(
            row_id("p", name),
            cell("pool", element("b", f"{pool.get('partition', '')} {kind}".strip()), title_of(name)),
            cell("wanted", str(pool.get("wanted", DASH)), class_="number"),
            cell("has", str(len(members)), class_="number"),
            cell("state", element("b", status, class_=f"badge {'warn' if short else 'good'}")),
            cell(
                "members",
                str(pool.get("held") or "not created yet"),
                f" (to be checked: {unchecked})" if unchecked else None,
                class_="wide",
            ),
        )
    return rows or nothing(
        "No standby pool: standby.size in robust.yaml is 0, or no node is free for one (type: srobust standby).", 5
    )


def title_of(name: str) -> Element:
    """Return a reservation's name, which is long and seldom wanted."""
    return element("small", f" {name}")


def _recent(incidents: list[Row]) -> dict[str, Element]:
    rows = {
        row_id("c", i.get("key")): row(
            row_id("c", i.get("key")),
            cell("opened", moment(i.get("opened_at_s")), " ", age(i.get("opened_at_s")), class_="when"),
            cell("job", incident_link(i, element("b", str(i.get("job", ""))))),
            cell("outcome", badge(i)),
            cell("back after", back_after(i) or DASH, class_="number"),
            cell("what happened", headline(i), class_="wide"),
        )
        for i in incidents[:RECENT_MAX]
    }
    return rows or nothing("No incident has been closed yet.", 5)
