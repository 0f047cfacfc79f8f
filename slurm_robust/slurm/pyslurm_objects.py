"""Calls Slurm by pyslurm's object API: `Nodes.load()`, `Job(…).requeue()`, `Reservation(…).create()`.

Found by trying pyslurm 25.11.2 and 22.5.3, and heeded below:

* an array's task 0, and offset 0 of a het job, are read as None;
* a text that is not UTF-8 raises where it is read; the exception has the bytes;
* `Job.load` of an array returns the first of its records, even if another task was meant; it reads the steps too, and
  can raise KeyError if there are no steps;
* an exit code above 127 is read less 128: 130 is 2;
* `Job.cancel` of an unknown job says nothing: the caller reads the job before;
* `Reservation.flags` raises where Slurm has set a flag that pyslurm does not name, `REPLACE_DOWN` and `TIME_FLOAT` too;
* a signal by `JobStep(job, step)` goes nowhere (25.11.2), and a job's steps are not always found: the caller uses the
  command;
* clearing a text with `""`, or a list with `[]`, changes nothing and says nothing: the caller uses the command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.errors import SlurmNotFoundError
from slurm_robust.slurm.pyslurm_messages import Installed, Unable
from slurm_robust.slurm.pyslurm_records import FLAGS, each, job_of, node_of, reservation_of

NEEDS: dict[str, tuple[str, ...]] = {
    # Without a node's extra text no fault marker would ever be seen.
    "nodes": ("Nodes.load", "Node.extra"),
    "update_nodes": ("Node.modify",),
    "jobs": ("Jobs.load",),
    "job_and_siblings": ("Job.load", "Jobs.load"),
    "requeue": ("Job.requeue",),
    "release": ("Job.release",),
    "update_job": ("Job.modify", "JobSubmitDescription"),
    "cancel": ("Job.cancel",),
    "reservations": ("Reservations.load", "Reservation.flags"),
    "create_reservation": ("Reservation.create", "ReservationFlags"),
    "update_reservation": ("Reservations.load", "Reservation.modify"),
    "delete_reservation": ("Reservation.delete",),
    "cluster_name": ("slurmctld.Config.load",),
}
"""Call → the names of pyslurm that it needs."""


def lacks(pyslurm: object, needs: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Call → the first name that this pyslurm does not have for it."""
    missing = {call: next((name for name in names if not _has(pyslurm, name)), "") for call, names in needs.items()}
    return {call: name for call, name in missing.items() if name}


def _has(pyslurm: object, name: str) -> bool:
    try:
        attrgetter(name)(pyslurm)
    except AttributeError:
        return False
    return True


class Objects:
    """The calls, by name."""

    needs = NEEDS

    def __init__(self, pyslurm: Any) -> None:
        self._slurm = pyslurm

    def installed(self) -> Installed:
        """Return the installed pyslurm; asks Slurm nothing."""
        return Installed(str(getattr(self._slurm, "__version__", "")), lacks(self._slurm, self.needs))

    def cluster_name(self) -> str:
        """Return the cluster's name."""
        settings = self._slurm.slurmctld.Config.load()
        name = settings.cluster_name if hasattr(settings, "cluster_name") else settings.cluster
        if not name:
            raise Unable("pyslurm names no cluster")
        return str(name)

    # Nodes

    def nodes(self) -> list[Node]:
        """Return all nodes."""
        return each(node_of, self._slurm.Nodes.load().values())

    def update_nodes(self, nodes: str, **changes: str) -> None:
        """Change nodes: state, reason, comment, extra text."""
        self._slurm.Node(nodes).modify(self._slurm.Node(**changes))

    # Jobs

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        return each(job_of, self._slurm.Jobs.load().values())

    def job_and_siblings(self, job_id: int) -> list[Job]:
        """Return a job, or every task of an array; empty if Slurm does not know it."""
        try:
            job = self._slurm.Job.load(job_id)
        except self._slurm.RPCError as error:
            if "Invalid job id" in str(error):
                return []
            raise
        except KeyError:
            job = None
        if job is not None and job.id == job_id and not job.array_id:
            return each(job_of, (job,))
        return each(job_of, [one for one in self._slurm.Jobs.load().values() if job_id in (one.id, one.array_id)])

    def requeue(self, job_id: int) -> None:
        """Plain requeue."""
        self._slurm.Job(job_id).requeue()

    def release(self, job_id: int) -> None:
        """End a hold."""
        self._slurm.Job(job_id).release()

    def update_job(self, job_id: int, **changes: Any) -> None:
        """Change a job."""
        self._slurm.Job(job_id).modify(self._slurm.JobSubmitDescription(**changes))

    def cancel(self, job_id: int) -> None:
        """Cancel a job; nothing happens, and nothing is said, where Slurm does not know it."""
        self._slurm.Job(job_id).cancel()

    # Reservations

    def reservations(self) -> list[Reservation]:
        """Return all reservations."""
        now_s = time.time()
        return each(lambda found: reservation_of(found, now_s), self._slurm.Reservations.load().values())

    def create_reservation(self, name: str, nodes: str, users: str, duration_min: int, flags: list[str]) -> None:
        """Create a reservation that starts now."""
        # In this order: a duration is counted from the start.
        fields: dict[str, Any] = {"nodes": nodes, "users": users.split(",")}
        fields |= {"start_time": int(time.time()), "duration": duration_min}
        if flags:
            fields["flags"] = self._flags(flags)
        self._slurm.Reservation(name, **fields).create()

    def _flags(self, names: list[str]) -> Any:
        kind = self._slurm.ReservationFlags
        known = {FLAGS.get(flag.name, flag.name): flag for flag in kind}
        bits = kind(0)
        for name in names:
            if name not in known:
                raise Unable(f"pyslurm has no flag {name}")
            bits |= known[name]
        return bits

    def update_reservation(self, name: str, nodes: str | None, duration_min: int | None) -> None:
        """Change a reservation; its length counts from its start."""
        found = self._slurm.Reservations.load().get(name)
        if found is None:
            raise SlurmNotFoundError("Requested reservation is invalid")
        if nodes is not None:
            found.nodes = nodes
        if duration_min is not None:
            found.end_time = found.start_time + 60 * duration_min
        found.modify()

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""
        self._slurm.Reservation(name).delete()
