"""Makes the HTML document around a board: it reads well without scripts; the script only updates it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from slurm_robust.core.text import duration
from slurm_robust.daemon.api.dashboard.pieces import local_date
from slurm_robust.daemon.api.dashboard.tree import Board, Section, visible
from slurm_robust.daemon.api.needs import STALE_S

_START = "systemctl status srobustd"
TRAININGS = ("job", "user", "nodes", "step", "s/step", "ETTR 1 h", "ETTR", "time went into", "says")
DRAINS = ("node", "state", "by", "since", "evidence")
POOLS = ("pool", "wanted", "has", "state", "members")
RECENT = ("opened", "job", "outcome", "back after", "what happened")
_SPENT = (
    '<p class="note key">Time went into '
    + "; ".join(
        f'<svg viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" class="spent-{colour}"/></svg> {words}'
        for colour, words in (
            ("productive", "new steps"),
            ("queue", "queue, start"),
            ("detection", "detection, diagnosis"),
            ("restart", "restart, recomputation"),
            ("checkpoint", "checkpoints, slow steps"),
            ("unknown", "nobody knows"),
        )
    )
    + ". ETTR: the share of new steps.</p>"
)
STAGES = ("stage", "when", "after the last", "since the first", "")
ACTIONS = ("called", "action", "on", "came to", "reason")


@dataclass(frozen=True)
class Frame:
    """The parts of a page beside its board.

    Attributes:
        assets: Name of a static file → its address.
        events: The address that the script asks for changes.
        version: The version of the board.
    """

    now_s: float
    at_s: float
    cluster: str
    daemon: str
    assets: Mapping[str, str]
    events: str = ""
    version: str = ""

    @property
    def age_s(self) -> float:
        """Return the age of the snapshot, seconds; infinite if there is no snapshot."""
        return max(0.0, self.now_s - self.at_s)


def home_page(board: Board, rows: Mapping[str, str], frame: Frame) -> str:
    """Return the HTML of the first page."""

    def put(name: str) -> str:
        return _container(board.sections[name], rows[name])

    grids = "".join(
        f"<h3>{escape(section.attributes['data-title'])} <small>{len(section.rows):,}</small></h3>{put(name)}"
        for name, section in board.sections.items()
        if name.startswith("grid-")
    )
    main = f"""
<section aria-labelledby="needs-title"><h2 id="needs-title">Needs a person now</h2>
{put("needs")}{put("state")}</section>
<section aria-labelledby="open-title"><h2 id="open-title">Incidents under way</h2>{put("open")}</section>
<section aria-labelledby="trainings-title"><h2 id="trainings-title">Trainings</h2>
{_table("trainings", TRAININGS, put("trainings"))}{_SPENT}</section>
<section aria-labelledby="nodes-title"><h2 id="nodes-title">Nodes</h2>{put("legend")}
<p id="tell" role="status">Point at a square, tap it, or go through a grid by the arrow keys.</p>{grids}</section>
<section aria-labelledby="drains-title"><h2 id="drains-title">Out of service, the newest first</h2>
{_table("drains", DRAINS, put("drains"))}</section>
<section aria-labelledby="pools-title"><h2 id="pools-title">Standby pools</h2>
{_table("pools", POOLS, put("pools"))}</section>
<section aria-labelledby="recent-title"><h2 id="recent-title">Last incidents</h2>
{_table("recent", RECENT, put("recent"))}</section>"""
    return document(board.title, main, frame)


def incident_page(board: Board, rows: Mapping[str, str], frame: Frame) -> str:
    """Return the page of one incident."""

    def put(name: str) -> str:
        return _container(board.sections[name], rows[name])

    main = f"""
{put("head")}{put("story")}{put("facts")}
<section aria-labelledby="stages-title"><h2 id="stages-title">Stages</h2>
{_table("stages", STAGES, put("stages"))}</section>
<section aria-labelledby="actions-title"><h2 id="actions-title">What the daemon did</h2>
{_table("actions", ACTIONS, put("actions"))}<p class="note">* not in the plan: found necessary later</p></section>"""
    return document(board.title, main, frame)


def message_page(title: str, sentences: Sequence[str], frame: Frame) -> str:
    """Return a page of a few sentences; a sentence that begins with `$ ` is a command."""
    lines = [
        f'<p><code class="command">{escape(s[2:])}</code></p>' if s.startswith("$ ") else f"<p>{escape(visible(s))}</p>"
        for s in sentences
    ]
    return document(title, f"<h1>{escape(title)}</h1>{''.join(lines)}", frame)


def report_index(pages: Sequence[tuple[str, str, float | None]], frame: Frame) -> str:
    """Return the list of the report's pages: (file, period, when it was made); if empty, why there are no pages."""
    items = "".join(
        f'<li><a href="/report/{escape(name)}">{escape(title)}</a> <small>made {local_date(made_at_s)}</small></li>'
        if made_at_s
        else f"<li>{escape(title)} <small>not made yet</small></li>"
        for name, title, made_at_s in pages
    )
    note = (
        "The daemon makes these pages anew every hour, or as daemon.http.report_every_h says. Of any other time: "
        if pages
        else "No pages are shown here: they have names that daemon.http.hide hides, or daemon.http.report_every_h "
        "is 0. On the daemon's machine: "
    )
    command = '<code class="command">srobust report --since 7d --out report.html</code>'
    main = f'<h1>How did the cluster do?</h1><ul class="plain">{items}</ul><p>{note}{command}</p>'
    return document("Report", main, frame)


def document(title: str, main: str, frame: Frame) -> str:
    """Return the whole document."""
    assets = frame.assets
    refresh = '<noscript><meta http-equiv="refresh" content="15"></noscript>' if frame.events else ""
    data = f' data-now="{frame.now_s:.3f}" data-at="{frame.at_s:.3f}"' if frame.at_s or frame.events else ""
    if frame.events:
        data += f' data-events="{escape(frame.events)}" data-version="{escape(frame.version)}"'
    stale = "stale" if frame.events and frame.age_s > STALE_S else "fresh"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(visible(title))}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">{refresh}
<link rel="icon" href="{assets["icon.svg"]}" type="image/svg+xml">
<link rel="stylesheet" href="{assets["dashboard.css"]}">
<script src="{assets["dashboard.js"]}" defer></script></head>
<body class="{stale}"{data}>
<a class="skip" href="#main">To the content</a>
<header><a href="/" class="home"><b>{escape(visible(frame.cluster))}</b></a>
<nav aria-label="Pages"><a href="/">Now</a> <a href="/report/">Report</a></nav>
<span id="age">{_age(frame)}</span></header>
<div id="alarm" role="alert">{_alarm(frame)}</div>
<main id="main">{main}</main>
<footer><p>{escape(visible(frame.daemon))}</p>
<p>Read-only. The same for tools: <a href="/state.json">state.json</a>, <a href="/metrics">metrics</a></p></footer>
</body></html>
"""


def _age(frame: Frame) -> str:
    if not frame.events:
        return ""
    return f"as of {escape(local_date(frame.at_s))}" if frame.at_s else "no state yet"


def _alarm(frame: Frame) -> str:
    """Return the loud sentence of a daemon that has died, for browsers without scripts; the script rewrites it."""
    if not frame.events or frame.age_s <= STALE_S:
        return ""
    command = f'<code class="command">{_START}</code>'
    if not frame.at_s:
        return f"<b>The daemon has published no state yet.</b> On its machine: {command}"
    return (
        f"<b>The daemon has been silent for {escape(duration(frame.age_s))}.</b> Everything below is as old. "
        f"On its machine: {command}"
    )


def _container(section: Section, rows: str) -> str:
    attributes = "".join([f' {name}="{escape(value)}"' for name, value in section.attributes.items()])
    return f'<{section.tag} id="{section.id}"{attributes}>{rows}</{section.tag}>'


def _table(name: str, columns: Sequence[str], body: str) -> str:
    head = "".join(f'<th role="columnheader" scope="col">{escape(column)}</th>' for column in columns)
    return (
        f'<table role="table" aria-labelledby="{name}-title" class="{name}"><thead role="rowgroup">'
        f'<tr role="row">{head}</tr></thead>{body}</table>'
    )
