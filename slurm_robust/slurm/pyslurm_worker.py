"""The process that runs pyslurm: reads JSON requests, one a line, and writes JSON replies, one a line.

libslurm ends its process if its configuration is wrong, and pyslurm holds the interpreter's lock during every call. In
a process of its own neither does harm: the caller has a deadline, and ends this process after it.

Written for pyslurm 22.5.x: nodes and changes to jobs use its newer classes, jobs and reservations its older functions.
The reply for a call that the installed version does not have is `Unable`, and the commands are used instead.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from slurm_robust.model import JobRef
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.errors import SlurmError, SlurmMissingError, SlurmParseError, from_text
from slurm_robust.slurm.values import epoch_s, expand, node_state


class Unable(Exception):  # noqa: N818 (not an error: a reply)
    """This version of pyslurm cannot do that."""


class Request(msgspec.Struct):
    """What to do; `what` names it in errors."""

    call: str
    what: str
    args: dict[str, Any] = {}


class Reply(msgspec.Struct):
    """`kind` is empty after success, else an error's class name."""

    kind: str = ""
    what: str = ""
    text: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")


def _flat(values: list[str] | None) -> str:
    # pyslurm splits node lists at every comma, also inside brackets.
    return ",".join(values or ())


class Worker:
    """The calls, by name."""

    def __init__(self, pyslurm: Any) -> None:
        self._slurm = pyslurm

    def _have(self, name: str) -> Any:
        found = getattr(self._slurm, name, None)
        if found is None:
            raise Unable(name)
        return found

    def nodes(self) -> list[Node]:
        """All nodes."""
        if not hasattr(self._have("Node"), "extra"):
            raise Unable("Node.extra")  # the command reads it: without it no fault marker would ever be seen
        return [_node(node) for node in self._have("Nodes").load().values()]

    def update_nodes(self, nodes: str, **changes: str) -> None:
        """Change nodes: state, reason, comment, extra text."""
        kind = self._have("Node")
        kind(nodes).modify(kind(**changes))

    def jobs(self) -> list[Job]:
        """All jobs."""
        return [_job(fields) for fields in self._have("job")().get().values()]

    def job_and_siblings(self, job_id: int) -> list[Job]:
        """A job, or every task of an array; unknown to Slurm: none."""
        try:
            return [_job(fields) for fields in self._have("job")().find_id(str(job_id))]
        except ValueError as error:
            if "Invalid job id" in str(error):
                return []
            raise

    def requeue(self, job_id: int) -> None:
        """Plain requeue."""
        self._have("Job")(job_id).requeue()

    def release(self, job_id: int) -> None:
        """End a hold."""
        self._have("Job")(job_id).release()

    def update_job(self, job_id: int, **changes: Any) -> None:
        """Change a job."""
        self._have("Job")(job_id).modify(self._have("JobSubmitDescription")(**changes))

    def cancel(self, job_id: int) -> None:
        """Cancel a job; not by `Job.cancel`, which reports the last error of an earlier call."""
        try:
            self._have("slurm_kill_job")(job_id, int(signal.SIGKILL), 0)
        except ValueError as error:
            if "already" not in str(error):
                raise

    def reservations(self) -> list[Reservation]:
        """All reservations."""
        now_s = time.time()
        return [_reservation(name, fields, now_s) for name, fields in self._have("reservation")().get().items()]

    def create_reservation(self, name: str, nodes: str, users: str, duration_min: int, flags: list[str]) -> None:
        """Create a reservation that starts now."""
        bits = 0
        for flag in flags:
            bits |= self._flag(flag)
        fields = {"name": name, "node_list": nodes, "users": users, "duration": duration_min, "flags": bits}
        self._have("slurm_create_reservation")(fields | {"start_time": int(time.time())})

    def _flag(self, flag: str) -> int:
        short = {"IGNORE_JOBS": "IGN_JOBS", "NO_HOLD_JOBS_AFTER_END": "NO_HOLD_JOBS"}.get(flag, flag)
        bit = self._have(f"RESERVE_FLAG_{short}")
        if not 0 < bit < 2**31:  # pyslurm passes flags through a C int
            raise Unable(flag)
        return int(bit)

    def update_reservation(self, name: str, nodes: str | None, duration_min: int | None) -> None:
        """Change a reservation."""
        fields: dict[str, Any] = {"name": name, "start_time": -1}
        if nodes is not None:
            fields["node_list"] = nodes.encode("ascii")
        if duration_min is not None:
            fields["duration"] = duration_min
        self._have("slurm_update_reservation")(fields)

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation."""
        self._have("slurm_delete_reservation")(name)

    def cluster_name(self) -> str:
        """The cluster's name."""
        config = getattr(self._have("slurmctld"), "Config", None)
        if config is None:
            raise Unable("slurmctld.Config")
        return str(config.load().cluster)


def _node(node: Any) -> Node:
    state, flags = node_state(node.state)
    if state == "ALLOCATED" and 0 < node.allocated_cpus < node.total_cpus:
        state = "MIXED"  # slurmctld's clients tell the two apart, not slurmctld
    return Node(
        name=node.name,
        state=state,
        flags=flags,
        reason=node.reason or "",
        reason_user=(node.reason_user or "") if node.reason else "",
        reason_at_s=(getattr(node, "reason_time", 0) or 0) if node.reason else 0,
        partitions=tuple(node.partitions or ()),
        gres=",".join(f"{kind}:{count}" for kind, count in node.configured_gres.items()),
        features=tuple(node.active_features or ()),
        cpus=node.total_cpus or 0,
        memory_mb=node.real_memory or 0,
        boot_at_s=node.boot_time or 0,
        comment=node.comment or "",
        extra=node.extra or "",
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _job_ref(fields: dict[str, Any]) -> JobRef:
    if fields["array_job_id"]:
        return JobRef(fields["job_id"], fields["array_job_id"], fields["array_task_id"])
    if fields["het_job_id"]:
        return JobRef(fields["job_id"], het_offset=fields["het_job_offset"] or 0)
    return JobRef(fields["job_id"])


def _job(fields: dict[str, Any]) -> Job:
    state, _, flags = fields["job_state"].replace(",", "+").partition("+")
    limit = fields["time_limit"]
    unlimited = not isinstance(limit, int)
    same = ("partition", "name", "batch_host", "comment", "admin_comment", "std_out", "work_dir")
    texts = {key: fields[key] or "" for key in same}
    return Job(
        ref=_job_ref(fields),
        std_err=fields.get("std_err") or "",
        state=state,
        completing="COMPLETING" in (state, *flags.split("+")),
        user=_user(fields["user_id"]),
        uid=fields["user_id"],
        nodes=expand(fields["nodes"] or ""),
        num_nodes=fields["num_nodes"],
        reason="" if fields["state_reason"] in (None, "None") else fields["state_reason"],
        reservation=fields["resv_name"] or "",
        exclude=_flat(fields["exc_nodes"]),
        req_nodes=_flat(fields["req_nodes"]),
        restart_count=fields["restart_cnt"] or 0,
        requeueable=bool(fields["requeue"] and fields["batch_flag"]),
        start_at_s=_at(fields["start_time"]),
        submit_at_s=_at(fields["submit_time"]),
        # Without a limit, Slurm sets the end a year ahead.
        end_at_s=0 if unlimited and state not in _ENDED else _at(fields["end_time"]),
        time_limit_s=None if unlimited else limit * 60,
        hetjob_id=fields["het_job_id"] or 0,
        priority=fields["priority"] or 0,
        gres=fields["tres_per_node"] or "",
        features=_flat(fields["features"]),
        exit_code=exit_code(state, fields["exit_code"] or "0:0", fields["derived_ec"] or "0:0"),
        **texts,
    )


def exit_code(state: str, printed: str, derived: str) -> str:
    """The true exit code behind the one that pyslurm's older functions print.

    They mix up `exit_code` with `derived_ec` (the highest of the steps): a signal where the script exited, an exit
    status where a signal ended it.
    """
    status, sig = (int(part) for part in printed.split(":"))
    derived_sig = int(derived.split(":")[1])
    if sig > 64:  # not a signal: the code of a step that was never set
        sig = 0
    elif sig and status:
        status, sig = (status, 0) if sig == derived_sig else (0, sig)
    elif sig and sig == derived_sig and state == "COMPLETED":
        sig = 0
    return f"{status}:{sig}"


_ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
)


def _at(value: Any) -> int:
    return value if isinstance(value, int) else epoch_s(str(value or ""))


def _reservation(name: str, fields: dict[str, Any], now_s: float) -> Reservation:
    return Reservation(
        name=name,
        nodes=fields["node_list"] or "",
        users=tuple(fields["users"] or ()),
        flags=frozenset((fields["flags"] or "").split(",")) - {""},
        start_at_s=fields["start_time"],
        end_at_s=fields["end_time"],
        state="ACTIVE" if fields["start_time"] <= now_s < fields["end_time"] else "INACTIVE",
    )


def answer(worker: Worker, request: Request, errors: tuple[type[Exception], ...]) -> Reply:
    """Carry out one request; an error is a reply, too."""
    call: Callable[..., Any] = getattr(worker, request.call)
    try:
        return Reply(value=msgspec.Raw(msgspec.json.encode(call(**request.args))))
    except Unable as missing:
        return Reply("Unable", request.what, str(missing))
    except SlurmError as error:
        return Reply(type(error).__name__, request.what, str(error))
    except errors as error:
        # pyslurm's older functions raise ValueError(words, number), its newer ones RPCError(words).
        said = from_text(request.what, str(error.args[0] if error.args else error))
        return Reply(type(said).__name__, said.what, said.text)
    except (KeyError, TypeError, AttributeError, UnicodeError) as error:
        return Reply(SlurmParseError.__name__, request.what, f"{type(error).__name__}: {error}")


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer until there are no more requests."""
    try:
        import pyslurm  # noqa: PLC0415 (runs slurm_init: only here, where an error can be reported)
    except (ImportError, OSError) as error:
        for _ in requests:
            replies.write(msgspec.json.encode(Reply(SlurmMissingError.__name__, "import pyslurm", str(error))) + b"\n")
            replies.flush()
        return
    worker = Worker(pyslurm)
    errors = (ValueError, pyslurm.PyslurmError) if hasattr(pyslurm, "PyslurmError") else (ValueError,)
    for line in requests:
        reply = answer(worker, msgspec.json.decode(line, type=Request), errors)
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


def main() -> None:
    """Entry point: requests on stdin; stdout is for replies only, and what libslurm prints is sent to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
