"""The back end for sites that have pyslurm: no process for each call, and no text to parse.

pyslurm runs in a process of its own (`pyslurm_worker`), so that every call has a deadline, and neither libslurm's exits
nor its symbols affect the daemon.

These calls use Slurm's commands nevertheless:

* `node`: prologs call it, and have no time to start a process that stays;
* `submit`, `signal`: pyslurm has no `sbatch` options, and does not find all steps;
* `requeue` that excludes nodes: two calls would take too long;
* `requeue`, `release`, `cancel`, `update_job` of one task of an array: pyslurm's calls take a number, which would mean
  the whole array;
* `update_job`, `set_node_comment` and `set_node_extra` with an empty text: pyslurm cannot clear;
* `job_gpus`: only the command names the GPUs of each node;
* whatever the installed version does not have (this was written for 22.5.x).
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_robust.config import SlurmConfig
from slurm_robust.model import JobRef
from slurm_robust.slurm import arguments
from slurm_robust.slurm.client import Job, JobChanges, Node, Reservation
from slurm_robust.slurm.commands import CommandClient, same
from slurm_robust.slurm.pyslurm_link import PyslurmLink
from slurm_robust.slurm.pyslurm_worker import Unable

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
_CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "comment": ("comment", arguments.free_text),
    "admin_comment": ("admin_comment", arguments.free_text),
    "exclude": ("excluded_nodes", lambda text: [arguments.node_list(text)]),
    "req_nodes": ("required_nodes", lambda text: [arguments.node_list(text)]),
    "reservation": ("reservations", lambda text: [arguments.name(text)]),
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


class PyslurmClient(CommandClient):
    """`SlurmClient` by pyslurm, and by the commands where pyslurm cannot (listed in this module's docstring).

    Raises:
        ImportError: pyslurm is not installed here.
    """

    def __init__(self, config: SlurmConfig) -> None:
        if not _here():
            raise ImportError("No module named 'pyslurm'")
        super().__init__(config)
        self._link = PyslurmLink(config)

    def close(self) -> None:
        """End pyslurm's process; the next call starts it again."""
        self._link.close()

    def nodes(self) -> list[Node]:
        """All nodes, in one call."""
        return self._read(list[Node], "nodes", "read nodes", super().nodes)

    def jobs(self) -> list[Job]:
        """All jobs that slurmctld holds, in one call; `exclude` included."""
        return self._read(list[Job], "jobs", "read jobs", super().jobs)

    def job(self, job: JobRef) -> Job | None:
        """One job, exactly; None where Slurm does not know it (any more)."""
        found = self._find(job)
        return self._with_exclude(found) if found and found.exclude is None else found

    def _find(self, job: JobRef) -> Job | None:
        array = job.array_job_id is not None and job.array_task_id is not None
        asked = job.array_job_id if array else job.job_id
        try:
            found = self._link.ask(list[Job], "job_and_siblings", f"read job {job.address}", job_id=asked)
        except Unable:
            return super()._find(job)
        for one in found:
            if same(one.ref, job):
                return one
        # One task of an array's pending rest has no record of its own yet; squeue can tell it apart.
        return super()._find(job) if array and found else None

    def reservations(self) -> list[Reservation]:
        """All reservations, in one call."""
        return self._read(list[Reservation], "reservations", "read reservations", super().reservations)

    def cluster_name(self) -> str:
        """The cluster's name; asked once."""
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
        """Bring nodes back; refused where one of them is neither drained nor down."""
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
        """Plain requeue; one task of an array, and what is to leave nodes out, goes by the command."""
        if without or not self._change_job("requeue", job):
            super().requeue(job, without=without)

    def release(self, job: JobRef) -> None:
        """End a pending job's hold; one task of an array goes by the command."""
        if not self._change_job("release", job):
            super().release(job)

    def update_job(self, job: JobRef, **changes: Unpack[JobChanges]) -> None:
        """Change a job in one call; clearing, and tasks of an array, go through the command."""
        if "" not in changes.values():
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
        if not self._done("create_reservation", f"create reservation {name}", **args, **more):
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
        """True where pyslurm did it; False for a task of an array, which a bare number may not name."""
        address = self._exact(job, verb)
        what = f"{verb} job {address}"
        return address.isdigit() and self._done(call or verb, what, job_id=int(address), **fields)

    def _read(self, kind: type[T], call: str, what: str, by_command: Callable[[], T]) -> T:
        try:
            return self._link.ask(kind, call, what)
        except Unable:
            return by_command()

    def _done(self, call: str, what: str, **args: Any) -> bool:
        """True where pyslurm did it; False where it cannot."""
        with contextlib.suppress(Unable):
            self._link.ask(type(None), call, what, **args)
            return True
        return False
