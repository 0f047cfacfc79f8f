"""Says which pyslurm fits which Slurm, and which calls go by Slurm's commands nevertheless."""

from __future__ import annotations

import re

from slurm_robust.slurm.in_use import BackEnd, Detour
from slurm_robust.slurm.pyslurm_messages import Installed

_NUMBER = "pyslurm takes a number, which would mean the whole array"
_CLEARED = "pyslurm does not pass an empty text on, and does not say so"
_ONE_TASK = "one task of an array is meant"
_UNKNOWN_FLAG = "a reservation has a flag that pyslurm does not know"

BY_COMMAND = (
    Detour("node", "one node is asked for by processes that end soon; starting pyslurm would take longer"),
    Detour(
        "node_listing", "sinfo puts nodes that are alike together, so that one call shows a large cluster in few lines"
    ),
    Detour("nodes_named", "some nodes are asked for by name, which pyslurm can only do one by one"),
    Detour("jobs_named", "some jobs are asked for by name, which pyslurm can only do one by one"),
    Detour("past_job", "the accounting is read by sacct"),
    Detour("past_runs", "the accounting is read by sacct"),
    Detour("job_gpus", "scontrol's answer has the same form with every Slurm, pyslurm's has not"),
    Detour("settings", "pyslurm does not call them as slurm.conf does"),
    Detour("reboot", "pyslurm cannot ask for it"),
    Detour("submit", "pyslurm does not read sbatch's options"),
    Detour("signal", "pyslurm does not find a job's steps each time that it looks"),
    *(Detour(call, _NUMBER, _ONE_TASK) for call in ("requeue", "release", "update_job", "cancel")),
    Detour("requeue", "requeue and exclusion go in one scontrol, before Slurm ends the caller", "it leaves nodes out"),
    Detour("requeue_and_place", "requeue and placement go in one scontrol, before Slurm may start the job elsewhere"),
    Detour("expire_reservation", "pyslurm cannot pass it on"),
    Detour("leave_reservation", "pyslurm cannot change some tasks of an array at once"),
    Detour("start_in_reservation", "reservation and job are changed in one scontrol: no other job comes in"),
    *(Detour(call, _CLEARED, "it clears") for call in ("update_job", "set_node_comment", "set_node_extra")),
    Detour("nodes", "pyslurm knows what is in use only where the accounting tracks it", "nodes have generic resources"),
    Detour("jobs", "pyslurm takes 128 from an exit code above 127", "a job failed since: its exit code, once"),
    Detour("reservations", "pyslurm raises where it reads REPLACE_DOWN or TIME_FLOAT", _UNKNOWN_FLAG),
    Detour("create_reservation", "pyslurm cannot pass it on", "the flag is one that pyslurm does not know"),
)
"""The calls that go by command with every version of pyslurm."""

_CALLS = {
    "nodes": ("nodes",),
    "update_nodes": ("drain", "set_down", "resume", "set_node_comment", "set_node_extra"),
    "jobs": ("jobs",),
    "job_and_siblings": ("job",),
}
"""The worker's call → the client's calls that need it, if their name is another one."""


def calls_of(call: str) -> tuple[str, ...]:
    """Return the client's calls that need this call of the worker's."""
    return _CALLS.get(call, (call,))


def release(version: str) -> tuple[int, int] | None:
    """Return the release of Slurm in `slurm-wlm 22.05.8` or `22.5.3`: `(22, 5)`; None if the text has none."""
    found = re.search(r"\b([0-9]{1,3})\.([0-9]{1,3})\b", version)
    return (int(found[1]), int(found[2])) if found else None


def judge(installed: Installed, slurm: str) -> BackEnd:
    """Judge whether this pyslurm fits the Slurm whose commands print this version, and what goes by command with it."""
    made_for, here = release(installed.version), release(slurm)
    problem = ""
    if made_for and here and made_for != here:
        problem = f"pyslurm {installed.version} is made for Slurm {_printed(made_for)}, and this is {_printed(here)}"
    elif {"nodes", "jobs"} <= installed.lacks.keys():
        lacked = " and ".join(sorted({installed.lacks["nodes"], installed.lacks["jobs"]}))
        problem = f"pyslurm {installed.version} has no {lacked}: it is not one of those known, 22.5.x and from 23.2 on"
    lacking = tuple(
        Detour(name, f"pyslurm {installed.version} has no {lacked}")
        for call, lacked in installed.lacks.items()
        for name in calls_of(call)
    )
    return BackEnd("pyslurm", installed.version, slurm, problem, BY_COMMAND, lacking)


def _printed(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]:02d}"
