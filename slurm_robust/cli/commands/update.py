"""`srobust update JOBID`: another version of a running job's code."""

from __future__ import annotations

import getpass
import glob
import json
import os
import pwd
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, get_args

import click
import msgspec

from slurm_robust.cli.state import clock
from slurm_robust.cli.table import plain, sentence, table
from slurm_robust.cli.teaching import fail, failing, lesson, not_running
from slurm_robust.config import site
from slurm_robust.core.model import JobRef
from slurm_robust.core.text import duration
from slurm_robust.policy.job.code_versions import When
from slurm_robust.slurm.client import Job
from slurm_robust.slurm.factory import connect
from slurm_robust.slurm.output_files import output_patterns
from slurm_robust.supervise import incident_folder
from slurm_robust.supervise.versions import code_orders
from slurm_robust.supervise.versions.code_orders import MAX_WITHIN_S, CodeOrder
from slurm_robust.supervise.versions.snapshot import SnapshotError
from slurm_robust.supervise.versions.version_folder import (
    FOLDER,
    CodeReport,
    CodeVersion,
    Origin,
    VersionFolder,
    not_part,
)

_REFUSED = 1
_ANSWER_S = 15.0
_POLL_S = 0.2
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _within(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Return a time such as 90m or 24h as seconds."""
    number, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS_S else (value, "s")
    try:
        within_s = float(number) * _UNITS_S[unit]
    except ValueError:
        within_s = 0.0
    if not 0 < within_s <= MAX_WITHIN_S:
        raise click.BadParameter(f"{value!r}: expected a time such as 90m, 24h or 2d, 30 days at most", ctx, param)
    return within_s


@click.command(
    "update",
    epilog=lesson(
        [
            ("srobust update 1234", "a new snapshot, in force after the next verified checkpoint"),
            ("srobust update 1234 --when now", "at once: restart in place from the last checkpoint"),
            ("srobust update 1234 --when next-failure", "no restart of its own, but for the end of 24 hours"),
            ("srobust update 1234 --rollback", "the last older version that made progress, at once"),
            ("srobust update 1234 --show", "the versions: who, when, what changed, which one runs"),
        ],
        [
            (0, "the job's supervisor has accepted it; or shown"),
            (1, "refused, with the reason, or nothing has changed; training goes on as before"),
            (2, "wrong usage"),
            (3, "no such running job, not yours, not started with --robust-code; or no answer came"),
        ],
    ),
)
@click.argument("job_id")
@click.option(
    "--when",
    type=click.Choice(get_args(When)),
    help="When it is put in force (default: next-checkpoint; with --rollback: now).",
)
@click.option(
    "--within",
    "within_s",
    callback=_within,
    default="24h",
    metavar="TIME",
    help="At the latest after this time: 90m, 24h (default), 2d.",
)
@click.option("--rollback", is_flag=True, help="Take the version in force back.")
@click.option("--show", is_flag=True, help="Show the versions, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --show: as JSON.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="The job's incident folder, where it is not beside its output."
)
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    job_id: str,
    *,
    when: When | None,
    within_s: float,
    rollback: bool,
    show: bool,
    as_json: bool,
    folder: Path | None,
    config_path: str | None,
) -> None:
    """Give a running job another version of its code, in its allocation: no node changes, and nothing is queued.

    The job must have been started with `srobust run --robust-code=DIR`. This command takes a snapshot of DIR as it is
    now, and asks the job's supervisor to put it in force by a restart in place. A version that ends by its own error
    before its first new step is taken back by itself. A step that was not started by srobust run (a plain srun under
    the SPANK plugin, or srobust attach) cannot be started again from another folder: there is no update for it.
    """
    if as_json and not show:
        raise click.UsageError("--json goes with --show")
    with failing("update", site.ConfigError):
        client = connect(site.load(config_path).slurm)
        job = client.job(JobRef.parse(job_id)) if folder is None or not show else None
    if job is None and (folder is None or not show):
        fail("update", not_running(job_id, None))
    if job is not None and os.geteuid() == 0:
        _become(job)
    versions, report = _found(job, job_id, folder)
    if show:
        _show(versions, report, as_json=as_json)
        return
    assert job is not None
    if job.state != "RUNNING":
        fail("update", not_running(job_id, job.state))
    _become(job)
    _check_owner(versions, job)
    if report.trouble:
        fail("update", f"job {job_id} runs from {report.source} itself: {report.trouble}")
    at_s = time.time()
    order = CodeOrder(
        report.job, 1, when or ("now" if rollback else "next-checkpoint"), within_s, at_s, _user(), rollback
    )
    if rollback:
        if not report.state.older:
            _refuse(f"there is no older version that made progress: srobust update {job_id} --show lists them")
        order = replace(order, number=report.state.older)
    else:
        version = _snapshot(versions, report)
        order = replace(order, number=version.number if version is not None else report.state.in_force)
    try:
        code_orders.send(versions.path, order)
    except OSError as error:
        fail("update", f"{versions.path}: {error.strerror}")
    _await_answer(versions, order)


def _become(job: Job) -> None:
    """Act as the job's user; root gives its own rights up, since all that is read here is the user's own text."""
    if os.geteuid() == 0 and job.uid != 0:
        try:
            owner = pwd.getpwuid(job.uid)
        except KeyError:
            fail("update", f"uid {job.uid}, to which job {job.ref.address} belongs, is not known on this machine")
        os.initgroups(owner.pw_name, owner.pw_gid)
        os.setgid(owner.pw_gid)
        os.setuid(owner.pw_uid)
        os.environ["HOME"] = owner.pw_dir  # git refuses to work if it may not read its settings
        os.environ.pop("XDG_CONFIG_HOME", None)
    if os.geteuid() != job.uid:
        fail("update", f"job {job.ref.address} belongs to uid {job.uid}: its user, or root, updates its code")


def _check_owner(versions: VersionFolder, job: Job) -> None:
    """Refuse a folder that another user owns or may write: its owner would choose what is copied, and where to."""
    try:
        info = versions.path.lstat()
    except OSError as error:
        fail("update", f"{versions.path}: {error.strerror}")
    if info.st_uid != job.uid or info.st_mode & 0o022:
        fail("update", f"{versions.path} is not the job user's alone: nothing is read from it or written to it")


def _incident_folder(job: Job) -> Path:
    """Return where the job's supervisor keeps its folder: beside the output, or in the working directory."""
    places = [found for pattern in output_patterns(job) for found in glob.glob(str(Path(pattern).parent))]  # noqa: PTH207
    wanted = [Path(place) / f"slurm-robust-{job.ref.address}" for place in (*places, job.work_dir or ".")]
    folders = [folder for path in wanted for folder in incident_folder.names(path)]
    return next((folder for folder in folders if _owner(folder / FOLDER) == job.uid), wanted[0])


def _owner(path: Path) -> int:
    """Return the number of the path's owner; -1 if the path cannot be seen."""
    try:
        return path.lstat().st_uid
    except OSError:
        return -1


def _found(job: Job | None, job_id: str, folder: Path | None) -> tuple[VersionFolder, CodeReport]:
    """Return the job's versions, and what its supervisor says of them."""
    if folder is None:
        assert job is not None
        folder = _incident_folder(job)
    versions = VersionFolder(folder)
    report = versions.report()
    if report is not None:
        return versions, report
    if folder.exists() and (folder / FOLDER).exists() and not os.access(folder / FOLDER, os.R_OK | os.X_OK):
        fail("update", f"{folder / FOLDER} is for the job's user alone")
    return fail(
        "update",
        f"job {job_id} does not run from a snapshot (there is no {folder / FOLDER}/state.json): start it with "
        "srobust run --robust-code=DIR. A job that runs under the SPANK plugin or srobust attach has none. Where "
        "--robust-folder was given: --folder DIR",
    )


def _snapshot(versions: VersionFolder, report: CodeReport) -> CodeVersion | None:
    """Take the new version; end the command if there is none, or nothing has changed.

    Return None if nothing has changed since the version in force but another version waits: that version is to be
    withdrawn.
    """
    before = report.state.in_force
    origin = Origin(Path(report.source), _user(), report.own_shared, before)
    try:
        version = versions.take(origin, report.limits)
    except SnapshotError as error:
        _refuse(str(error))
    if not version.changes.any:
        versions.remove(version.number)
        if report.state.pending is not None:
            return None
        _refuse(f"nothing has changed in {report.source} since version {before}, which is in force")
    click.echo(f"version {version.number}, from {version.source}: {version.changes.text} since version {before}")
    if rest := not_part(version):
        click.echo(plain(rest))
    return version


def _await_answer(versions: VersionFolder, order: CodeOrder) -> None:
    """Wait for the supervisor's answer to the order, and show it."""
    until_s = time.monotonic() + _ANSWER_S
    while time.monotonic() < until_s:
        report = versions.report()
        if report is not None and report.answer is not None and report.answer.order_at_s == order.at_s:
            if not report.answer.accepted:
                _refuse(report.answer.text)
            click.echo(report.answer.text)
            return
        time.sleep(_POLL_S)
    where = f"the order stays in {versions.path}" if code_orders.waiting(versions.path) else "the order was taken"
    job_id = order.job
    fail("update", f"no answer within {_ANSWER_S:g} s; {where}: srobust update {job_id} --show tells what became of it")


def _refuse(why: str) -> NoReturn:
    click.echo(f"srobust update: refused: {why}", err=True)
    sys.exit(_REFUSED)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _show(versions: VersionFolder, report: CodeReport, *, as_json: bool) -> None:
    state, known = report.state, versions.versions()
    if as_json:
        shown = {
            "version": 1,
            "job": report.job,
            "source": report.source,
            "in_force": state.in_force,
            "pending": msgspec.to_builtins(state.pending),
            "older": state.older,
            "proven": state.proven,
            "taken_back": state.taken_back,
            "trouble": report.trouble,
            "folder": str(versions.path),
            "versions": [msgspec.to_builtins(version) for version in known],
        }
        click.echo(json.dumps(shown, indent=1))
        return
    if report.trouble:
        sentence(f"Job {report.job} runs from {report.source} itself: {report.trouble}")
        return
    sentence(f"Job {report.job} runs version {state.in_force} of {report.source}; the files are in {versions.path}.")
    if state.pending is not None:
        left = duration(max(0.0, state.pending.until_s - time.time()))
        sentence(f"Version {state.pending.number} waits ({state.pending.when}), for {left} at the most.")
    rows = [
        (v.number, clock(v.at_s), v.by, v.commit, v.changes.text if v.before else f"{v.files} files", _state(v, report))
        for v in known
    ]
    click.echo()
    table("Versions", ("version", "taken", "by", "git", "changes", "state"), rows)


def _state(version: CodeVersion, report: CodeReport) -> str:
    state, number = report.state, version.number
    words = [
        *(["in force"] if number == state.in_force else []),
        *(["pending"] if state.pending is not None and state.pending.number == number else []),
        *(["taken back"] if number in state.taken_back else []),
        *(["made progress"] if number in state.proven else []),
    ]
    return ", ".join(words)
