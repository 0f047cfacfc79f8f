"""A stand-in with the names of pyslurm 25.11.2 and its traps: the object API, and none of the older functions.

What it is asked is written to the file of `$STUB_CALLS`, a JSON list a line; `$STUB_TROUBLE` has words for what goes
wrong.
"""

from __future__ import annotations

import enum
import json
import os
from types import SimpleNamespace
from typing import Any

__version__ = "25.11.2"
UNLIMITED = "UNLIMITED"


def _note(*words: object) -> None:
    with open(os.environ["STUB_CALLS"], "a", encoding="utf-8") as calls:
        calls.write(json.dumps(words) + "\n")


def _trouble(word: str) -> bool:
    return word in os.environ.get("STUB_TROUBLE", "").split()


class PyslurmError(Exception):
    pass


class RPCError(PyslurmError):
    pass


class Node:
    def __init__(self, name: str | None = None, **changes: Any) -> None:
        self.name = name
        self.changes = changes

    state = "IDLE+DRAIN"
    reason, reason_user, reason_time = "srobust: x", "root", 1_790_000_000
    comment, extra = "by hand", None
    partitions, active_features = ["main"], []
    configured_gres, allocated_gres = {"gpu:fake": 2}, {"gpu:fake": 1}
    total_cpus, allocated_cpus, real_memory, boot_time = 8, 0, 2000, 10

    def modify(self, changes: Node) -> None:
        # An empty text is no change, silently.
        _note("modify node", self.name, {key: value for key, value in changes.changes.items() if value})


class Nodes(dict):
    @staticmethod
    def load() -> Nodes:
        _note("load nodes")
        return Nodes({name: Node(name) for name in ("n1", "n2")})


class JobSubmitDescription:
    def __init__(self, **changes: Any) -> None:
        self.changes = changes


class Job:
    def __init__(self, job_id: int, **fields: Any) -> None:
        self.id = job_id
        self.__dict__.update(fields)

    name, state, state_reason, partition = "train", "RUNNING", "None", "main"
    user_id, user_name = 0, "root"
    num_nodes, allocated_nodes, batch_host = 2, "n[1-2]", "n1"
    admin_comment, reservation, required_nodes, excluded_nodes = None, None, None, "n4"
    requeue_count, is_requeueable, is_batch_job, priority = 0, True, True, 7
    start_time, submit_time, end_time, time_limit = 20, 10, 3620, 60
    eligible_time = 10
    heterogeneous_id, heterogeneous_offset = None, None
    array_id, array_task_id, array_tasks_waiting = None, None, None
    gres_per_node, constraints = {"gpu": 1}, ["a", "b"]
    exit_code, exit_code_signal = 0, 0
    standard_output, standard_error, working_directory = "/out", "/err", "/work"

    @property
    def comment(self) -> str:
        return b"a \xff b".decode("utf-8") if _trouble("foreign_bytes") else "own words"

    @staticmethod
    def load(job_id: int) -> Job:
        _note("load job", job_id)
        jobs = Jobs.all()
        found = [job for job in jobs if job_id in (job.id, job.array_id)]
        if not found:
            raise RPCError("Invalid job id specified")
        if _trouble("no_steps"):
            raise KeyError(job_id)
        return found[0]  # of an array the first of its records, whichever was meant

    def modify(self, changes: JobSubmitDescription) -> None:
        # Neither an empty text nor an empty list is a change, silently.
        _note("modify job", self.id, {key: value for key, value in changes.changes.items() if value})

    def requeue(self, hold: bool = False) -> None:
        _note("requeue", self.id, hold)

    def release(self) -> None:
        _note("release", self.id)

    def cancel(self) -> None:
        _note("cancel", self.id)


class Jobs(dict):
    @staticmethod
    def all() -> list[Job]:
        array = {"array_id": 8}
        return [
            Job(7),
            Job(10, **array, array_task_id=2),
            Job(9, **array),  # task 0: reads as none
            Job(8, **array, state="PENDING", array_tasks_waiting="3-5", allocated_nodes=None, time_limit=UNLIMITED),
            Job(11, heterogeneous_id=11),  # its first part: the offset 0 reads as none
            Job(12, state="FAILED", exit_code=2),  # of 130
        ]

    @staticmethod
    def load() -> Jobs:
        _note("load jobs")
        return Jobs({job.id: job for job in Jobs.all()})


class JobStep:
    def __init__(self, job_id: int, step_id: int | str) -> None:
        self.job_id, self.id = job_id, step_id

    def send_signal(self, signal: int) -> None:
        """It reaches nobody, silently."""


class ReservationFlags(enum.Flag):
    MAINTENANCE = 1
    FLEX = 2
    IGNORE_RUNNING_JOBS = 4
    OVERLAP = 8
    NO_JOB_HOLD_AFTER_END = 16


class Reservation:
    def __init__(self, name: str, **fields: Any) -> None:
        self.__dict__.update({"name": name, "nodes": None, "users": [], "start_time": 0, "end_time": 0, "_flags": 0})
        for key, value in fields.items():
            setattr(self, key, value)
        self.changed: dict[str, object] = {}

    reoccurrence = "NO"

    def __setattr__(self, name: str, value: object) -> None:
        if name == "duration":
            name, value = "end_time", self.start_time + 60 * int(value)  # type: ignore[call-overload]
        elif name == "flags":
            name, value = "_flags", value.value  # type: ignore[attr-defined]
        elif "changed" in self.__dict__:
            self.changed[name] = value
        self.__dict__[name] = value

    @property
    def flags(self) -> ReservationFlags:
        if _trouble("replace_down"):  # some releases of Python 3.11 drop an unknown bit of a Flag, and do not raise
            raise ValueError("1024 is not a valid ReservationFlags")
        return ReservationFlags(self._flags)

    def create(self) -> None:
        flags = sorted(flag.name or "" for flag in ReservationFlags if flag in ReservationFlags(self._flags))
        _note("create", self.name, self.nodes, self.users, self.end_time - self.start_time, flags)

    def modify(self) -> None:
        _note("modify reservation", self.name, {k: v for k, v in self.changed.items() if k != "changed"})

    def delete(self) -> None:
        _note("delete", self.name)


class Reservations(dict):
    @staticmethod
    def load() -> Reservations:
        _note("load reservations")
        seat = Reservation("seat", nodes="n[1-2]", users=["ann"], start_time=10, end_time=20)
        seat.flags = ReservationFlags.FLEX | ReservationFlags.IGNORE_RUNNING_JOBS
        return Reservations({"seat": seat})


class _Config:
    cluster_name = "devil"

    @staticmethod
    def load() -> _Config:
        if _trouble("refused"):
            raise RPCError("Incompatible versions of client and server code")
        return _Config()


slurmctld = SimpleNamespace(Config=_Config)
