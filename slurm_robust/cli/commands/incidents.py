"""`srobust incidents`: what happened, when, why, and what was done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from slurm_robust.cli.state import clock, config_to_show, load_state, print_json, source_options
from slurm_robust.cli.table import paragraph, plain, table
from slurm_robust.cli.teaching import lesson
from slurm_robust.config.site import Config
from slurm_robust.core.model import TIME_KEYS, road_words
from slurm_robust.core.text import duration, first_sentence
from slurm_robust.policy.cluster.stage_times import back_s

_REPORT_MAX_BYTES = 8 << 20


@click.command(
    "incidents",
    epilog=lesson(
        [
            ("srobust incidents", "the newest, one a line"),
            ("srobust incidents 1234", "everything about those of job 1234"),
            ("srobust incidents 1234 --html incident.html", "the newest of them as a page, with stacks and ranks"),
            ("srobust incidents slurm-robust-1234", "those of a job's folder, without a daemon; also with --html"),
            ("srobust incidents --json | jq '.[0].times'", "the same for tools: docs/json.md"),
        ],
        [(0, "shown"), (1, "no such incident, or the daemon's state cannot be read"), (2, "wrong usage")],
    ),
)
@click.argument("incident", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many, newest first.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write INCIDENT's page into this file.")
@source_options
def command(incident: str | None, limit: int, html: Path | None, path: str | None, as_json: bool) -> None:
    """Show what happened, when, why, and what was done; with INCIDENT (its id, key or job), everything.

    INCIDENT may also be the folder of an incident or of a job, which needs no daemon.
    """
    if html is not None and incident is None:
        raise click.UsageError("--html FILE needs an incident: its id, key, job or folder")
    if html is not None and Path(str(incident)).is_dir():
        _write_folder(Path(str(incident)), html)
        return
    kept = _of_folder(incident) if incident is not None else []
    incidents = kept or _load(config_to_show(path))
    if incident is not None and not kept:
        # Messages name an array's task by its own number, which the key begins with.
        incidents = [i for i in incidents if incident in (i["id"], i["key"], i["job"], i["key"].partition(".")[0])]
        if not incidents:
            raise click.ClickException(f"no incident {incident}; srobust incidents lists them")
    incidents = incidents[:limit]
    if html is not None:
        _write(Path(_folder(incidents[0])), incidents[0], html)
        if len(incidents) > 1:
            ids = ", ".join(i["id"] for i in incidents[1:4])
            click.echo(f"the newest of {len(incidents)} incidents; others: {ids}", err=True)
    elif as_json:
        print_json(incidents)
    elif incident is not None:
        for one in incidents:
            _show(one)
    else:
        rows = [
            (
                *(clock(i["opened_at_s"]), i["id"], i["job"], i["user"], i["outcome"] or i["state"]),
                ",".join((i["plan"] or {}).get("evict") or i["verdict"].get("suspects") or ()),
                *(_took(i), why(i)),
            )
            for i in incidents
        ]
        columns = ("opened", "id", "job", "user", "outcome", "suspects", "back after", "reason")
        table("Incidents", columns, rows, drop=("back after", "user"))


def _load(config: Config) -> list[dict[str, Any]]:
    """Return all incidents from the journal if it can be read, else the newest incidents from the snapshot."""
    from slurm_robust.daemon.api.state_snapshot import recent_incidents  # noqa: PLC0415 (the same)
    from slurm_robust.daemon.store.journal import FILE_NAME, Journal  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.daemon.store.schema import JournalError  # noqa: PLC0415 (the same)

    folder = Path(config.daemon.state_dir)
    try:
        readable = (folder / FILE_NAME).exists()
    except PermissionError:
        readable = False
    if readable:
        try:
            journal = Journal.open(folder, read_only=True)
        except JournalError:
            return list(load_state(config)["incidents"])
        try:
            return recent_incidents(journal, limit=-1)
        finally:
            journal.close()
    return list(load_state(config)["incidents"])


def _of_folder(name: str) -> list[dict[str, Any]]:
    """Return the incidents in a folder of this name; empty without such a folder, or if it only looks like a job's."""
    if not Path(name).is_dir():
        return []
    from slurm_robust.cli.diagnosis.incident_files import incidents_of_folder  # noqa: PLC0415 (loaded for a folder only)

    found = incidents_of_folder(Path(name))
    if not found and not name.isdecimal():
        raise click.ClickException(f"{name}: no incident in it; name a folder that holds incident.json")
    return found


def _write_folder(folder: Path, html: Path) -> None:
    """Write the page of the incident in a folder, or of the newest incident in a job's folder."""
    from slurm_robust.cli.diagnosis.incident_files import newest_incident  # noqa: PLC0415 (loaded for a page only)

    saved = newest_incident(folder)
    if saved is None:
        raise click.ClickException(f"{folder}: no incident in it; name a folder that holds incident.json")
    if saved.incident is None:
        raise click.ClickException("; ".join(saved.problems) or f"{saved.folder}: its incident.json cannot be read")
    _write(saved.folder, {}, html)


def _write(folder: Path, journal: dict[str, Any], html: Path) -> None:
    from slurm_robust.cli.diagnosis.incident_files import read_sources  # noqa: PLC0415 (loaded for a page only)
    from slurm_robust.cli.page_file import local_offset_s, write_page  # noqa: PLC0415 (the same)
    from slurm_robust.report.pages.incident_assemble import incident_view  # noqa: PLC0415 (the same)
    from slurm_robust.report.pages.incident_page import incident_html  # noqa: PLC0415 (the same)

    now_s = time.time()
    view = incident_view(read_sources(folder, journal, html), now_s, local_offset_s(now_s))
    write_page(html, incident_html(view))
    click.echo(f"{html}: the page of incident {plain(view.id)}", err=True)


def _folder(incident: dict[str, Any]) -> str:
    """Return where the job has kept the incident, as far as the journal knows."""
    known = incident["report"].rstrip("/") or f"slurm-robust-{incident['job']}"
    return f"{known}/{incident['id']}"


def why(incident: dict[str, Any]) -> str:
    """Return the first sentence of the incident's verdict; of its outcome if it did not end well."""
    well = incident["outcome"] in ("", "running", "resumed", "observed")
    return first_sentence(str((incident["verdict"].get("why") if well else incident["reason"]) or incident["reason"]))


def _took(incident: dict[str, Any]) -> str:
    """Return the time from the fault to the first step after it, as text."""
    took_s = back_s(incident["times"])
    return "" if took_s is None else duration(took_s)


def _show(i: dict[str, Any]) -> None:
    verdict, plan = i["verdict"], i["plan"]
    of = f" of {i['user']}" if i["user"] else ""
    click.echo(f"incident {i['id']}   job {i['job']}{of}, attempt {i['attempt']['restart_count']}")
    came_to = i["outcome"] or i["state"]
    paragraph("came to", i["reason"] if i["reason"].startswith(came_to) else f"{came_to}: {i['reason']}".rstrip(": "))
    suspects = f" on {', '.join(verdict['suspects'])}" if verdict.get("suspects") else ""
    found = first_sentence(str(verdict.get("why", "")))
    paragraph("verdict", f"{verdict.get('conclusion') or 'none'}{suspects}: {found}".rstrip(": "))
    if plan:
        parts = (("without", plan["evict"]), ("standby", plan["standby"]))
        change = ", ".join(f"{word} {', '.join(nodes)}" for word, nodes in parts if nodes)
        paragraph("plan", f"{road_words(plan['road'])}: {change}{'; ' if change else ''}{plan['reason']}")
        if i["mode"] == "observe":
            paragraph("", "observed only: nothing was done")
    report = _report(i)
    paragraph("report", report or f"slurm-robust-{i['job']}/ beside the job's output file")
    times = sorted(((at_s, name) for name, at_s in i["times"].items()), key=lambda t: (t[0], _place(t[1])))
    rows, last_s = [], times[0][0] if times else 0.0
    for at_s, name in times:
        rows.append((name, clock(at_s), f"+{at_s - last_s:.3f} s", f"{at_s - times[0][0]:.3f} s"))
        last_s = at_s
    click.echo()
    table("Times", ("what", "when", "after the last", "since the first"), rows)
    lines = [
        (
            *(clock(a["called_at_s"]), a["kind"] if a["planned"] else f"{a['kind']} *", a["target"], _outcome(a)),
            "as planned" if plan and a["reason"] == plan["reason"] else a["reason"],
        )
        for a in i["actions"]
    ]
    if i["key"]:  # a job's folder does not know what the daemon did
        click.echo()
        table("Actions", ("called", "action", "on", "came to", "reason"), lines, drop=("called",))
    if any(not a["planned"] for a in i["actions"]):
        click.echo("* not in the plan: found necessary later")
    if stood := _where_ranks_stood(report):
        click.echo(f"\n{stood}")


def _report(i: dict[str, Any]) -> str:
    """Return the wrapper's report of this incident. The job chooses the folder, so it is only read."""
    return f"{i['report'].rstrip('/')}/{i['id']}/report.md" if i["report"] else ""


def _where_ranks_stood(report: str) -> str:
    """Return the merged stacks from the report, if the caller can read it and it is not too large."""
    from slurm_robust.wire import plain_file  # noqa: PLC0415 (loaded for one incident only)

    try:
        data = plain_file.read(Path(report), _REPORT_MAX_BYTES + 1) if report else b""
    except (OSError, ValueError):  # a path with a NUL is a ValueError
        return ""
    if len(data) > _REPORT_MAX_BYTES:
        return ""
    _, found, stood = data.decode("utf-8", "replace").partition("## Where the ranks stood\n")
    lines = [line for line in stood.splitlines() if line.strip() not in ("", "```")]
    return "\n".join(("Where the ranks stood", *map(plain, lines))) if found else ""


def _place(name: str) -> int:
    return TIME_KEYS.index(name) if name in TIME_KEYS else len(TIME_KEYS)


def _outcome(action: dict[str, Any]) -> str:
    if action["done_at_s"]:
        if not action["called_at_s"]:
            return "done"
        since_s = action["done_at_s"] - action["called_at_s"]
        return f"done in {since_s:.2f} s" + (f", {action['calls']} calls" if action["calls"] > 1 else "")
    if action["error"]:
        return f"failed: {action['error']}" if action["calls"] else str(action["error"])
    return "called" if action["calls"] else "not called"
