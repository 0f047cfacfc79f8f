"""Parses Slurm's output: pure functions from text to the values of `slurm.client`.

Every call requests times as seconds since the epoch (`SLURM_TIME_FORMAT=%s`), and UTC: ISO times are read as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_robust.model import JobRef
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.values import duration_s, epoch_s, expand, node_state, nothing, plain

JOB_FIELDS = (
    "jobid",
    "arrayjobid",
    "arraytaskid",
    "hetjobid",
    "hetjoboffset",
    "state",
    "userid",
    "username",
    "partition",
    "numnodes",
    "nodelist",
    "batchhost",
    "batchflag",
    "reason",
    "reservation",
    "reqnodes",
    "restartcnt",
    "requeue",
    "starttime",
    "submittime",
    "endtime",
    "timelimit",
    "prioritylong",
    "tres-per-node",
    "feature",
    "exit_code",
    "name",
    "comment",
    "admin_comment",
    "stdout",
    "workdir",
)
"""The fields of `squeue -O`, in this order."""

_NODE_RECORD = re.compile(r"\n(?=NodeName=)")
_RESERVATION_RECORD = re.compile(r"\n(?=ReservationName=)")
_FREE_TEXT = re.compile(r"\s(?=(?:Reason|Comment|Extra)=)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z_:/]+)=(\S*)")
_STAMP = r" \[([^\s\[\]@]*)@([0-9T:-]+|Unknown|None)\]"
# Greedy: the last stamp is Slurm's own. A reason can quote a job's text, a node's comment cannot.
_REASON = re.compile(r"\s*Reason=(.*)" + _STAMP + r"(?=\s*\Z|\s+(?:Comment|Extra)=)", re.DOTALL)
_REASON_BARE = re.compile(r"\s*Reason=(.*?)(?:" + _STAMP + r"|\s*\Z)", re.DOTALL)
_GRES_COUNT = re.compile(r"(?<!IDX):(\d{1,9})(?=\(|,|$)")
"""In `gpu:a100:4(IDX:0-3),nic:1`: the last number of each."""
_COMMENT = re.compile(r"\s+Comment=(.*?)(?:\s+Extra=.*)?\Z", re.DOTALL)


def _records(text: str, head: str, split: re.Pattern[str], none_text: str) -> list[str]:
    text = text.strip("\n")
    if text.strip() == none_text:
        return []
    records = split.split(text)
    for record in records:
        if not record.startswith(head):
            raise SlurmParseError(f"scontrol's answer does not begin with {head}", text[:200])
    return records


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for key, value in _PAIR.findall(text):
        pairs.setdefault(key, value)  # the first of a name is Slurm's own; later ones may be part of a text
    return pairs


def _number(pairs: dict[str, str], key: str) -> int:
    text = pairs.get(key, "")
    if nothing(text):
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise SlurmParseError(f"{key} is not a number", text[:80])
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return () if nothing(text) else tuple(text.split(","))


def _stamped(text: str) -> int:
    try:
        return epoch_s(text)
    except SlurmParseError:
        return 0  # an administrator's own text in the form of a stamp: no time, and no error


def parse_nodes(text: str) -> list[Node]:
    """Read `scontrol show node -o`.

    Reason and comment are free text at the end of a line; both can be written by administrators only.

    Raises:
        SlurmParseError: not that.
    """
    found = []
    for record in _records(text, "NodeName=", _NODE_RECORD, "No nodes in the system"):
        cut = _FREE_TEXT.search(record)
        pairs = _pairs(record[: cut.start()] if cut else record)
        if "State" not in pairs:
            raise SlurmParseError("a node without a state", record[:200])
        tail = record[cut.start() :] if cut else ""
        why = _REASON.match(tail) or _REASON_BARE.match(tail)
        comment = _COMMENT.match(tail[why.end() :] if why else tail)
        state, flags = node_state(pairs["State"])
        found.append(
            Node(
                name=pairs["NodeName"],
                state=state,
                flags=flags,
                reason=why[1] if why else "",
                reason_user=(why[2] or "") if why else "",
                reason_at_s=_stamped(why[3] or "") if why else 0,
                partitions=_names(pairs.get("Partitions", "")),
                gres=plain(pairs.get("Gres", "")),
                features=_names(pairs.get("ActiveFeatures", "")),
                cpus=_number(pairs, "CPUTot"),
                memory_mb=_number(pairs, "RealMemory"),
                boot_at_s=epoch_s(pairs.get("BootTime", "")),
                comment=plain(comment[1].rstrip()) if comment else "",
                gres_used=sum(map(int, _GRES_COUNT.findall(pairs.get("GresUsed", "")))),
            )
        )
    return found


def parse_reservations(text: str) -> list[Reservation]:
    """Read `scontrol show reservation -o`.

    Raises:
        SlurmParseError: not that.
    """
    found = []
    for record in _records(text, "ReservationName=", _RESERVATION_RECORD, "No reservations in the system"):
        cut = _FREE_TEXT.search(record)
        pairs = _pairs(record[: cut.start()] if cut else record)
        if "EndTime" not in pairs:
            raise SlurmParseError("a reservation without an end", record[:200])
        found.append(
            Reservation(
                name=pairs["ReservationName"],
                nodes=plain(pairs.get("Nodes", "")),
                users=_names(pairs.get("Users", "")),
                flags=frozenset(_names(pairs.get("Flags", ""))),
                start_at_s=epoch_s(pairs.get("StartTime", "")),
                end_at_s=epoch_s(pairs["EndTime"]),
                state=pairs.get("State", ""),
            )
        )
    return found


def parse_jobs(text: str, separator: str) -> list[Job]:
    """Read `squeue -h -O` of `JOB_FIELDS`, each followed by `separator`.

    A job's name, comment, folder and files are its owner's texts and may contain anything, also newlines. They cannot
    forge a field or a job, since `separator` is random, new for each call, and secret.

    Raises:
        SlurmParseError: not that.
    """
    pieces = text.split(separator)
    if pieces.pop().strip("\n") or len(pieces) % len(JOB_FIELDS):
        raise SlurmParseError("squeue's answer is cut short or in another form", text[:200].replace(separator, "|"))
    width = len(JOB_FIELDS)
    return [
        _job(dict(zip(JOB_FIELDS, pieces[start : start + width], strict=True)))
        for start in range(0, len(pieces), width)
    ]


def _job(fields: dict[str, str]) -> Job:
    fields["jobid"] = fields["jobid"].removeprefix("\n")
    state, _, flags = fields["state"].replace(",", "+").partition("+")
    if not re.fullmatch(r"[A-Z_]+", state):
        raise SlurmParseError("not a job state", fields["state"][:80])
    return Job(
        ref=_job_ref(fields),
        state=state,
        completing="COMPLETING" in (state, *flags.split("+")),
        user=fields["username"],
        uid=_number(fields, "userid"),
        partition=fields["partition"],
        name=fields["name"],
        nodes=expand(fields["nodelist"]),
        batch_host=plain(fields["batchhost"]),
        num_nodes=_number(fields, "numnodes"),
        reason=plain(fields["reason"]),
        comment=fields["comment"] if fields["comment"] != "(null)" else "",
        admin_comment=fields["admin_comment"] if fields["admin_comment"] != "(null)" else "",
        reservation=plain(fields["reservation"]),
        exclude=None,
        req_nodes=plain(fields["reqnodes"]),
        restart_count=_number(fields, "restartcnt"),
        requeueable=fields["requeue"] != "0" and fields["batchflag"] != "0",
        start_at_s=epoch_s(fields["starttime"]),
        submit_at_s=epoch_s(fields["submittime"]),
        end_at_s=epoch_s(fields["endtime"]),
        time_limit_s=duration_s(fields["timelimit"]),
        hetjob_id=_number(fields, "hetjobid"),
        priority=_number(fields, "prioritylong"),
        gres=plain(fields["tres-per-node"]),
        features=plain(fields["feature"]),
        exit_code=_exit_code(fields["exit_code"]),
        std_out=plain(fields["stdout"]),
        work_dir=plain(fields["workdir"]),
    )


def _exit_code(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,10}", text):  # 22.05's long format has the raw wait status
        return f"{int(text) >> 8 & 0xFF}:{int(text) & 0x7F}"
    return text


def _job_ref(fields: dict[str, str]) -> JobRef:
    job_id = _number(fields, "jobid")
    if not job_id:
        raise SlurmParseError("a job without an id", fields["jobid"][:80])
    if not nothing(fields["arraytaskid"]):
        # The pending rest of an array is one record, `0-9%2`: not a single task.
        task = int(fields["arraytaskid"]) if re.fullmatch(r"[0-9]{1,10}", fields["arraytaskid"]) else None
        return JobRef(job_id, _number(fields, "arrayjobid"), task)
    if _number(fields, "hetjobid"):
        return JobRef(job_id, het_offset=_number(fields, "hetjoboffset"))
    return JobRef(job_id)


def parse_settings(text: str) -> dict[str, str]:
    """Read `scontrol show config`: `Key = value` a line; headings have no `=`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def cluster_name(settings: Mapping[str, str]) -> str:
    """The cluster's name out of the settings.

    Raises:
        SlurmParseError: it is not there.
    """
    name = settings.get("ClusterName", "")
    if not name or " " in name:
        raise SlurmParseError("scontrol show config names no cluster", str(settings)[:200])
    return name
