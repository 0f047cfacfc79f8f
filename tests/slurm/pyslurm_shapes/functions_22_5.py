"""A stand-in with the names of pyslurm 22.5.x: nodes and jobs are objects, reservations are dicts of functions."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

__version__ = "22.5.3"
RESERVE_FLAG_FLEX = 2
RESERVE_FLAG_IGN_JOBS = 4
RESERVE_FLAG_NO_HOLD_JOBS = 2**33  # more than the C int that takes it


def _note(*words: object) -> None:
    with open(os.environ["STUB_CALLS"], "a", encoding="utf-8") as calls:
        calls.write(json.dumps(words, default=bytes.decode) + "\n")


class PyslurmError(Exception):
    pass


class RPCError(PyslurmError):
    pass


class Node:
    extra = None

    def __init__(self, name: str | None = None, **changes: Any) -> None:
        self.name, self.changes = name, changes

    def modify(self, changes: Node) -> None:
        _note("modify node", self.name, changes.changes)


class Nodes(dict):
    @staticmethod
    def load() -> Nodes:
        _note("load nodes")
        return Nodes()


class JobSubmitDescription:
    pass


class Job:
    def __init__(self, job_id: int) -> None:
        self.id = job_id

    @staticmethod
    def load(job_id: int) -> Job:
        raise RPCError("Invalid job id specified")

    def modify(self, changes: JobSubmitDescription) -> None:
        pass

    requeue = release = cancel = modify


class Jobs(dict):
    @staticmethod
    def load() -> Jobs:
        _note("load jobs")
        return Jobs()


class reservation:  # noqa: N801 (pyslurm's name)
    def get(self) -> dict[str, dict[str, Any]]:
        _note("get reservations")
        fields = {"node_list": "n[1-2]", "users": ["ann"], "flags": "FLEX,OVERLAP", "start_time": 10, "end_time": 20}
        return {"seat": fields}


def slurm_create_reservation(fields: dict[str, Any]) -> str:
    _note("create", {key: value for key, value in fields.items() if key != "start_time"})
    return str(fields["name"])


def slurm_update_reservation(fields: dict[str, Any]) -> int:
    _note("update", fields)
    return 0


def slurm_delete_reservation(name: str) -> int:
    raise ValueError("Requested reservation is invalid", 2028)


class _Config:
    cluster = "devil"

    @staticmethod
    def load() -> _Config:
        return _Config()


slurmctld = SimpleNamespace(Config=_Config)
