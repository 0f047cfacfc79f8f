"""Calls Slurm by pyslurm, on sites that have it: no process for each call, and no text to parse.

pyslurm runs in a process of its own (`pyslurm_worker`), so that every call has a deadline, and neither libslurm's exits
nor its symbols affect the daemon.

`pyslurm_fit` lists the calls that go by Slurm's commands nevertheless. A pyslurm that does not fit this Slurm, or that
fails in a call, is named in one warning of `logging`, and the commands do its work: a call does not fail because of
pyslurm alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_robust.config.site import SlurmConfig
from slurm_robust.core.model import JobRef
from slurm_robust.slurm import arguments
from slurm_robust.slurm.client import Job, JobChanges, Node, Reservation, same
from slurm_robust.slurm.commands import CommandClient
from slurm_robust.slurm.errors import SlurmError, SlurmMissingError, SlurmParseError
from slurm_robust.slurm.in_use import BackEnd, Detour
from slurm_robust.slurm.pyslurm_fit import calls_of, judge
from slurm_robust.slurm.pyslurm_link import PyslurmLink, WorkerDiedError
from slurm_robust.slurm.pyslurm_messages import Broken, Installed, Unable
from slurm_robust.slurm.values import listed_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)
T = TypeVar("T")
_CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "comment": ("comment", arguments.free_text),
    "admin_comment": ("admin_comment", arguments.free_text),
    "exclude": ("excluded_nodes", lambda text: [arguments.node_list(text)]),
    "req_nodes": ("required_nodes", lambda text: [arguments.node_list(text)]),
    "reservation": ("reservations", lambda text: [arguments.name(one) for one in text.split(",")]),
    "start_now": ("begin_time", lambda now: "now" if now else None),
    "time_limit_min": ("time_limit", arguments.minutes),
}
"""`JobChanges` → pyslurm's field, and its value."""


def _pyslurm_fields(changes: Mapping[str, Any]) -> dict[str, Any]:
    given = ((*_CHANGES[name], value) for name, value in changes.items() if value is not None)
    fields = {field: convert(value) for field, convert, value in given}
    return {field: value for field, value in fields.items() if value is not None}


def _here() -> bool:
    with contextlib.suppress(ValueError):
        return importlib.util.find_spec("pyslurm") is not None
    return False


def _run(job: Job) -> tuple[int, int]:
    return job.ref.job_id, job.restart_count


class PyslurmClient(CommandClient):
    """`SlurmClient` by pyslurm, and by the commands where pyslurm cannot (`about` tells which)."""

    def __init__(self, config: SlurmConfig) -> None:
        super().__init__(config)
        self._link = PyslurmLink(config)
        self._judging = threading.Lock()
        self._about: BackEnd | None = None
        self._given_up: dict[str, str] = {}
        """The worker's calls that go by command, and why."""
        self._exit_codes: dict[tuple[int, int], str] = {}

    def close(self) -> None:
        """End pyslurm's process; the next call starts it again."""
        self._link.close()

    def about(self) -> BackEnd:
        """Return the back end, its versions, and what goes by command; starts pyslurm, asks slurmctld nothing."""
        with self._judging:
            if self._about is None:
                self._about = self._judged()
            return self._about

    def _judged(self) -> BackEnd:
        slurm = self.slurm_version()
        about = BackEnd("pyslurm", slurm=slurm, problem="" if _here() else "it is not installed here")
        if not about.problem:
            try:
                # At the start of a job, the commands still have time after this.
                within_s = self._config.timeout_s / 2
                installed = self._link.ask(Installed, "installed", "start pyslurm", within_s=within_s)
                about = judge(installed, slurm)
                self._given_up = dict(installed.lacks)
            except (SlurmError, Unable) as error:
                about = replace(about, problem=str(error))
        if about.problem:
            self._link.close()
            log.warning(
                "slurm.backend is pyslurm, which does not fit here: %s. Slurm's commands are used instead; install the "
                "pyslurm that matches this Slurm's major.minor, or set slurm.backend: commands in robust.yaml",
                about.problem,
            )
        elif self._given_up:
            log.warning(
                "pyslurm %s has no %s: Slurm's commands are used for what needs it; see: srobust doctor",
                about.version,
                ", ".join(sorted(set(self._given_up.values()))),
            )
        return about

    def nodes(self) -> list[Node]:
        """Return all nodes; sinfo tells how many generic resources are in use."""
        found = self._read(list[Node], "nodes", "read nodes", super().nodes)
        if not any(node.gres for node in found):
            return found
        try:
            listing = self.node_listing()
        except (SlurmMissingError, SlurmParseError):
            return found
        # Only for nodes in the same state: after a start of a job, no idle node must show resources in use.
        used = {(name, line.state): line.gres_used for line, names in listing.items() for name in names}
        told = [used.get((node.name, listed_state(node.state, node.flags)), 0) for node in found]
        return [replace(node, gres_used=max(node.gres_used, count)) for node, count in zip(found, told, strict=True)]

    def jobs(self) -> list[Job]:
        """Return all jobs that slurmctld holds, in one call; `exclude` included."""
        return self._with_exit_codes(self._read(list[Job], "jobs", "read jobs", super().jobs))

    def job(self, job: JobRef) -> Job | None:
        """Return one job, exactly; None if Slurm does not know it (any more)."""
        found = self._find(job)
        return self._with_exclude(found) if found and found.exclude is None else found

    def _find(self, job: JobRef) -> Job | None:
        array = job.array_job_id is not None and job.array_task_id is not None
        asked = job.array_job_id if array else job.job_id
        try:
            found = self._ask(list[Job], "job_and_siblings", f"read job {job.address}", job_id=asked)
        except (Unable, WorkerDiedError):
            return super()._find(job)
        for one in found:
            if same(one.ref, job):
                return one if one.exit_code else super()._find(job)
        # One task of an array's pending rest has no record of its own yet; squeue can tell it apart.
        return super()._find(job) if array and found else None

    def _with_exit_codes(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs with exit codes: if pyslurm cannot tell one, the command tells it, once for each run."""
        unknown = [_run(job) for job in jobs if not job.exit_code]
        if unknown and not self._exit_codes.keys() >= set(unknown):
            told = {_run(job): job.exit_code for job in super().jobs()}
            self._exit_codes = {run: told.get(run, "") for run in unknown}
        codes = self._exit_codes
        return [job if job.exit_code else replace(job, exit_code=codes.get(_run(job), "")) for job in jobs]

    def reservations(self) -> list[Reservation]:
        """Return all reservations, in one call."""
        return self._read(list[Reservation], "reservations", "read reservations", super().reservations)

    def cluster_name(self) -> str:
        """Return the cluster's name; asked once."""
        if not self._cluster_name:
            what = "read the cluster's name"
            self._cluster_name = self._read(str, "cluster_name", what, super().cluster_name)
        return self._cluster_name

    def drain(self, nodes: str, reason: str) -> None:
        """Drain nodes; `reason` must begin with `srobust:`."""
        if not self._change_nodes("drain", nodes, state="DRAIN", reason=arguments.reason(reason)):
            super().drain(nodes, reason)

    def set_down(self, nodes: str, reason: str) -> None:
        """Set nodes DOWN; `reason` must begin with `srobust:`."""
        if not self._change_nodes("set down", nodes, state="DOWN", reason=arguments.reason(reason)):
            super().set_down(nodes, reason)

    def resume(self, nodes: str) -> None:
        """Bring nodes back; refused if one of them is neither drained nor down."""
        if not self._change_nodes("resume", nodes, state="RESUME"):
            super().resume(nodes)

    def set_node_comment(self, nodes: str, comment: str) -> None:
        """Write the nodes' comment, one line; clearing goes by the command."""
        if not comment or not self._change_nodes("write the comment of", nodes, comment=arguments.line(comment)):
            super().set_node_comment(nodes, comment)

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """Write the nodes' extra text, one line; clearing goes by the command."""
        if not extra or not self._change_nodes("write the extra text of", nodes, extra=arguments.line(extra)):
            super().set_node_extra(nodes, extra)

    def requeue(self, job: JobRef, *, without: Sequence[str] = ()) -> None:
        """Requeue a job plainly; for one task of an array, and to leave nodes out, the command is used."""
        if without or not self._change_job("requeue", job):
            super().requeue(job, without=without)

    def release(self, job: JobRef) -> None:
        """End a pending job's hold; one task of an array goes by the command."""
        if not self._change_job("release", job):
            super().release(job)

    def update_job(self, job: JobRef, **changes: Unpack[JobChanges]) -> None:
        """Change a job in one call; clearing, tasks of an array and most starts go through the command."""
        now = changes.get("start_now") and self.clock_ahead_s
        if "" not in changes.values() and changes.get("start_in_s") is None and not now:
            fields = _pyslurm_fields(changes)
            if not fields or self._change_job("update", job, "update_job", **fields):
                return
        super().update_job(job, **changes)

    def cancel(self, job: JobRef) -> None:
        """Cancel a job; one task of an array goes by the command."""
        if not self._change_job("cancel", job):
            super().cancel(job)

    def create_reservation(
        self, name: str, nodes: str, users: tuple[str, ...], duration_min: int, flags: tuple[str, ...]
    ) -> None:
        """Create a reservation that starts now."""
        arguments.flags(flags)
        args = {"name": arguments.name(name), "nodes": arguments.node_list(nodes), "users": arguments.names(users)}
        more = {"duration_min": arguments.minutes(duration_min), "flags": list(flags)}
        if self.clock_ahead_s or not self._done("create_reservation", f"create reservation {name}", **args, **more):
            super().create_reservation(name, nodes, users, duration_min, flags)

    def update_reservation(self, name: str, *, nodes: str | None = None, duration_min: int | None = None) -> None:
        """Change a reservation; `nodes` is the whole new list, `duration_min` counts from its start."""
        args = {
            "name": arguments.name(name),
            "nodes": None if nodes is None else arguments.node_list(nodes),
            "duration_min": None if duration_min is None else arguments.minutes(duration_min),
        }
        if not self._done("update_reservation", f"update reservation {name}", **args):
            super().update_reservation(name, nodes=nodes, duration_min=duration_min)

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation; refused while a job stands in it."""
        if not self._done("delete_reservation", f"delete reservation {name}", name=arguments.name(name)):
            super().delete_reservation(name)

    def _change_nodes(self, verb: str, nodes: str, **changes: str) -> bool:
        return self._done("update_nodes", f"{verb} {nodes}", nodes=arguments.node_list(nodes), **changes)

    def _change_job(self, verb: str, job: JobRef, call: str = "", **fields: Any) -> bool:
        """Return whether pyslurm did it; False for a task of an array, which a bare number may not name."""
        address = self._exact(job, verb)
        what = f"{verb} job {address}"
        return address.isdigit() and self._done(call or verb, what, job_id=int(address), **fields)

    def _read(self, kind: type[T], call: str, what: str, by_command: Callable[[], T]) -> T:
        self.unread.pop(call, None)
        try:
            return self._ask(kind, call, what)
        except (Unable, WorkerDiedError):
            return by_command()

    def _done(self, call: str, what: str, **args: Any) -> bool:
        """Return whether pyslurm did it."""
        with contextlib.suppress(Unable):
            self._ask(type(None), call, what, **args)
            return True
        return False

    def _ask(self, kind: type[T], call: str, what: str, **args: Any) -> T:
        """Make one call of the worker, and return the answer.

        Raises:
            Unable: the command has to do the call.
            WorkerDiedError: pyslurm's process ended in the call.
            SlurmError: Slurm's answer, or the deadline.
        """
        if self.about().problem or call in self._given_up:
            raise Unable(self._given_up.get(call, ""))
        try:
            return self._link.ask(kind, call, what, **args)
        except (Broken, WorkerDiedError) as error:
            with self._judging:
                self._given_up[call] = str(error)
                if self._about is not None:
                    failed = [Detour(name, f"pyslurm failed: {error}") for name in calls_of(call)]
                    self._about = replace(self._about, lacking=(*self._about.lacking, *failed))
            log.warning("pyslurm failed to %s (%s): from now on Slurm's command does it", what, error)
            raise
