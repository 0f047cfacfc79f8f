"""Makes the values of `slurm.client` of pyslurm's objects."""

from __future__ import annotations

import functools
import pwd
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.pyslurm_messages import Unable
from slurm_robust.slurm.unread import UNREADABLE
from slurm_robust.slurm.values import clamped_s, expand, node_state

T = TypeVar("T")
FLAGS = {
    "MAINTENANCE": "MAINT",
    "IGNORE_RUNNING_JOBS": "IGNORE_JOBS",
    "NO_JOB_HOLD_AFTER_END": "NO_HOLD_JOBS_AFTER_END",
    "STATIC_NODES": "STATIC",
    "PARTITION_NODES_ONLY": "PART_NODES",
    "USER_DELETION": "USER_DELETE",
    "PURGE": "PURGE_COMP",
    "SPECIFIC_NODES": "SPEC_NODES",
}
"""pyslurm's name of a reservation's flag → Slurm's name, if the two differ."""
_ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
)


def each(read: Callable[[Any], T], things: Iterable[Any]) -> list[T]:
    """Read all of these.

    Raises:
        Unable: one of them cannot be read; Slurm's command then reads them, and skips and names that one alone.
    """
    try:
        return [read(thing) for thing in things]
    except UNREADABLE as error:
        raise Unable(f"a record cannot be read: {type(error).__name__}: {error}"[:300]) from error


def _text(thing: object, name: str) -> str:
    """Return a text; bytes that are not UTF-8 are replaced."""
    try:
        return str(getattr(thing, name) or "")
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "replace")


def _texts(thing: object, **names: str) -> dict[str, Any]:
    return {field: _text(thing, name) for field, name in names.items()}


def _count(found: Any) -> int:
    """Return the count of one kind of resources; pyslurm 22.5 has a dict if Slurm says which resources are in use."""
    return int(found["count"] if isinstance(found, dict) else found)


def _counted(counts: Mapping[str, int] | None) -> str:
    return ",".join(f"{kind}:{count}" for kind, count in (counts or {}).items())


def node_of(node: Any) -> Node:
    """Make a node of pyslurm's record."""
    state, flags = node_state(node.state)
    if state == "ALLOCATED" and 0 < (node.allocated_cpus or 0) < (node.total_cpus or 0):
        state = "MIXED"  # slurmctld's clients tell the two apart, not slurmctld
    reason = _text(node, "reason")
    return Node(
        name=node.name,
        state=state,
        flags=flags,
        reason=reason,
        reason_user=(node.reason_user or "") if reason else "",
        reason_at_s=clamped_s(node.reason_time or 0) if reason else 0,
        partitions=tuple(node.partitions or ()),
        gres=_counted(node.configured_gres),
        gres_used=sum(map(_count, (node.allocated_gres or {}).values())),
        features=tuple(node.active_features or ()),
        cpus=node.total_cpus or 0,
        memory_mb=node.real_memory or 0,
        boot_at_s=clamped_s(node.boot_time or 0),
        **_texts(node, comment="comment", extra="extra"),
    )


@functools.lru_cache(maxsize=4096)
def _known_user(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


def _user(uid: int) -> str:
    try:
        return _known_user(uid)
    except KeyError:
        return str(uid)


def _job_ref(job: Any) -> JobRef:
    if job.array_id:
        task = job.array_task_id
        # Only the pending rest of an array has tasks that wait.
        return JobRef(job.id, job.array_id, 0 if task is None and not job.array_tasks_waiting else task)
    if job.heterogeneous_id:
        return JobRef(job.id, het_offset=job.heterogeneous_offset or 0)
    return JobRef(job.id)


def _exit_code(job: Any) -> str:
    """Return the exit code in Slurm's form; empty if it may be 128 more than the code that pyslurm tells."""
    return "" if job.exit_code else f"0:{job.exit_code_signal or 0}"


def job_of(job: Any) -> Job:
    """Make a job of pyslurm's record; without its exit code if that is not sure."""
    state, _, flags = str(job.state).replace(",", "+").partition("+")
    unlimited = not isinstance(job.time_limit, int)
    reason = _text(job, "state_reason")
    texts = _texts(
        job,
        partition="partition",
        name="name",
        batch_host="batch_host",
        comment="comment",
        admin_comment="admin_comment",
        reservation="reservation",
        exclude="excluded_nodes",
        req_nodes="required_nodes",
        std_out="standard_output",
        std_err="standard_error",
        work_dir="working_directory",
    )
    if texts["std_err"] == texts["std_out"]:
        texts["std_err"] = ""  # 24.11.0 fills it in where Slurm's command prints nothing
    return Job(
        ref=_job_ref(job),
        state=state,
        completing="COMPLETING" in (state, *flags.split("+")),
        user=_user(job.user_id),
        uid=job.user_id,
        nodes=expand(_text(job, "allocated_nodes")),
        num_nodes=job.num_nodes or 0,
        reason="" if reason == "None" else reason,
        restart_count=job.requeue_count or 0,
        batch=bool(job.is_batch_job),
        requeueable=bool(job.is_requeueable and job.is_batch_job),
        start_at_s=clamped_s(job.start_time or 0),
        submit_at_s=clamped_s(job.submit_time or 0),
        eligible_at_s=clamped_s(job.eligible_time or 0),
        # Without a limit, Slurm sets the end a year ahead.
        end_at_s=0 if unlimited and state not in _ENDED else clamped_s(job.end_time or 0),
        time_limit_s=None if unlimited else job.time_limit * 60,
        hetjob_id=job.heterogeneous_id or 0,
        priority=job.priority or 0,
        gres=_counted(job.gres_per_node),
        features=",".join(job.constraints or ()),
        exit_code=_exit_code(job),
        **texts,
    )


def reservation_of(found: Any, now_s: float) -> Reservation:
    """Make a reservation of pyslurm's record.

    Raises:
        Unable: the reservation has a flag that pyslurm does not know.
    """
    try:
        flags = found.flags
    except ValueError as error:
        raise Unable(f"reservation {found.name} has a flag that pyslurm does not know") from error
    names = {FLAGS.get(flag.name, flag.name) for flag in type(flags) if flag in flags}
    again = str(found.reoccurrence)
    return Reservation(
        name=found.name,
        nodes=_text(found, "nodes"),
        users=tuple(found.users or ()),
        flags=frozenset(names | ({again} - {"NO"})),
        start_at_s=clamped_s(found.start_time or 0),
        end_at_s=clamped_s(found.end_time or 0),
        state="ACTIVE" if (found.start_time or 0) <= now_s < (found.end_time or 0) else "INACTIVE",
    )
