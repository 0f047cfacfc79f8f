"""Parses Slurm's output: pure functions from text to the values of `slurm.client`.

Every call requests times as seconds since the epoch (`SLURM_TIME_FORMAT=%s`), and UTC: ISO times are read as UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from sys import intern
from typing import Any

from slurm_robust.core.model import JobRef
from slurm_robust.slurm.client import Job, Node, Reservation
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.unread import check, read_one
from slurm_robust.slurm.values import duration_s, epoch_s, expand, node_state, nothing, plain

_FREE_TEXT = re.compile(r"\s(?=(?:Reason|Comment|Extra)=)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z_:/]+)=(\S*)")
_NODE_PAIR = re.compile(
    r"(?:^|\s)(NodeName|State|Partitions|Gres|GresUsed|ActiveFeatures|CPUTot|RealMemory|BootTime)=(\S*)"
)
"""The fields of a node that are read; other fields are left out, since there may be ten thousand nodes."""
_STAMP = r" \[([^\s\[\]@]*)@([0-9T:-]+|Unknown|None)\]"
# Greedy: the last stamp is Slurm's own. A reason can quote a job's text, a node's comment cannot.
_REASON = re.compile(r"\s*Reason=(.*)" + _STAMP + r"(?=\s*\Z|\s+(?:Comment|Extra)=)", re.DOTALL)
_REASON_BARE = re.compile(r"\s*Reason=(.*?)(?:" + _STAMP + r"|\s*\Z)", re.DOTALL)
_GRES_COUNT = re.compile(r"(?<!IDX):(\d{1,9})(?=\(|,|$)")
"""The count of each resource in `gpu:a100:4(IDX:0-3),nic:1`: its last number."""
_COMMENT = re.compile(r"\s+Comment=(.*?)(?=\s+(?:Extra|InstanceId)=|\s*\Z)", re.DOTALL)
_EXTRA = re.compile(r"\s+Extra=(.*?)(?=\s+InstanceId=|\s*\Z)", re.DOTALL)


def _records(
    text: str, head: str, none_text: str, pair: re.Pattern[str] = _PAIR
) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield each record, its pairs, and the free text behind them; one by one, since there may be thousands."""
    text = text.strip("\n")
    if text.strip() == none_text:
        return
    for record in re.split(rf"\n(?={head})", text):
        if not record.startswith(head):
            raise SlurmParseError(f"scontrol's answer does not begin with {head}", text[:200])
        cut = _FREE_TEXT.search(record)
        end = cut.start() if cut else len(record)
        yield record, _pairs(record[:end], pair), record[end:]


def _pairs(text: str, pair: re.Pattern[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for key, value in pair.findall(text):
        pairs.setdefault(key, value)  # the first of a name is Slurm's own; later ones may be part of a text
    return pairs


def _number(pairs: dict[str, str], key: str) -> int:
    text = pairs.get(key, "")
    if nothing(text):
        return 0
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise SlurmParseError(f"{key} is not a number", text[:80])
    return int(text)


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[str, ...]:
    return () if nothing(text) else tuple(text.split(","))


def _stamped(text: str) -> int:
    try:
        return epoch_s(text)
    except SlurmParseError:
        return 0  # an administrator's own text in the form of a stamp: no time, and no error


def gres_count(used: str) -> int:
    """Return how many generic resources a text such as `gpu:a100:4(IDX:0-3),nic:1` names."""
    return sum(map(int, _GRES_COUNT.findall(used)))


def parse_nodes(text: str, unread: list[str] | None = None) -> list[Node]:
    """Read `scontrol show node -o`; a node that cannot be read is skipped where `unread` takes its name.

    Reason and comment are free text at the end of a line; both can be written by administrators only.

    Raises:
        SlurmParseError: not that, or nothing of it can be read.
    """
    found = []
    for record, pairs, tail in _records(text, "NodeName=", "No nodes in the system", _NODE_PAIR):
        node = read_one(f"node {pairs.get('NodeName', '')[:80]}", unread, _node, record, pairs, tail)
        found += [node] if node else []
    check(found, unread)
    return found


def _node(record: str, pairs: dict[str, str], tail: str) -> Node:
    if "State" not in pairs:
        raise SlurmParseError("a node without a state", record[:200])
    why = _REASON.match(tail) or _REASON_BARE.match(tail)
    texts = tail[why.end() :] if why else tail
    comment = _COMMENT.match(texts)
    extra = _EXTRA.match(texts[comment.end() :] if comment else texts)
    state, flags = node_state(pairs["State"])
    return Node(
        name=pairs["NodeName"],
        state=state,
        flags=flags,
        reason=why[1] if why else "",
        reason_user=(why[2] or "") if why else "",
        reason_at_s=_stamped(why[3] or "") if why else 0,
        partitions=_names(pairs.get("Partitions", "")),
        gres=intern(plain(pairs.get("Gres", ""))),
        features=_names(pairs.get("ActiveFeatures", "")),
        cpus=_number(pairs, "CPUTot"),
        memory_mb=_number(pairs, "RealMemory"),
        boot_at_s=epoch_s(pairs.get("BootTime", "")),
        comment=intern(plain(comment[1].rstrip())) if comment else "",
        extra=plain(extra[1].rstrip()) if extra else "",
        gres_used=gres_count(pairs.get("GresUsed", "")),
    )


def parse_reservations(text: str, unread: list[str] | None = None) -> list[Reservation]:
    """Read `scontrol show reservation -o`; one that cannot be read is skipped where `unread` takes its name.

    Raises:
        SlurmParseError: not that, or nothing of it can be read.
    """
    found = []
    for record, pairs, _ in _records(text, "ReservationName=", "No reservations in the system"):
        name = f"reservation {pairs.get('ReservationName', '')[:80]}"
        one = read_one(name, unread, _reservation, record, pairs)
        found += [one] if one else []
    check(found, unread)
    return found


def _reservation(record: str, pairs: dict[str, str]) -> Reservation:
    if "EndTime" not in pairs:
        raise SlurmParseError("a reservation without an end", record[:200])
    return Reservation(
        name=pairs["ReservationName"],
        nodes=plain(pairs.get("Nodes", "")),
        users=_names(pairs.get("Users", "")),
        flags=frozenset(_names(pairs.get("Flags", ""))),
        start_at_s=epoch_s(pairs.get("StartTime", "")),
        end_at_s=epoch_s(pairs["EndTime"]),
        state=pairs.get("State", ""),
    )


def _exit_code(fields: dict[str, str], key: str) -> str:
    text = fields[key]
    if re.fullmatch(r"[0-9]{1,10}", text):  # 22.05's long format has the raw wait status
        return f"{int(text) >> 8 & 0xFF}:{int(text) & 0x7F}"
    return text


def _own_text(fields: dict[str, str], key: str) -> str:
    return fields[key] if fields[key] != "(null)" else ""


def _as(convert: Callable[[str], object]) -> Callable[[dict[str, str], str], object]:
    return lambda fields, key: convert(fields[key])


_JOB_VALUES: dict[str, tuple[str, Callable[[dict[str, str], str], object]]] = {
    "userid": ("uid", _number),
    "username": ("user", _as(str)),
    "partition": ("partition", _as(str)),
    "numnodes": ("num_nodes", _number),
    "nodelist": ("nodes", _as(expand)),
    "batchhost": ("batch_host", _as(plain)),
    "reason": ("reason", _as(plain)),
    "reservation": ("reservation", _as(plain)),
    "reqnodes": ("req_nodes", _as(plain)),
    "restartcnt": ("restart_count", _number),
    "starttime": ("start_at_s", _as(epoch_s)),
    "submittime": ("submit_at_s", _as(epoch_s)),
    "eligibletime": ("eligible_at_s", _as(epoch_s)),
    "endtime": ("end_at_s", _as(epoch_s)),
    "timelimit": ("time_limit_s", _as(duration_s)),
    "hetjobid": ("hetjob_id", _number),
    "prioritylong": ("priority", _number),
    "tres-per-node": ("gres", _as(plain)),
    "feature": ("features", _as(plain)),
    "exit_code": ("exit_code", _exit_code),
    "name": ("name", _as(str)),
    "comment": ("comment", _own_text),
    "admin_comment": ("admin_comment", _own_text),
    "stdout": ("std_out", _as(plain)),
    "stderr": ("std_err", _as(plain)),
    "workdir": ("work_dir", _as(plain)),
}
"""squeue's field → the attribute of `Job`, and how its value is read."""

JOB_FIELDS = ("jobid", "arrayjobid", "arraytaskid", "hetjoboffset", "state", "batchflag", "requeue", *_JOB_VALUES)
"""The fields of `squeue -O`, in this order."""


PAST_JOB_FIELDS = (
    ("JobID", "State", "User", "Partition", "JobName", "WorkDir", "StdOut", "StdErr"),
    ("JobID", "State", "User", "Partition", "JobName", "WorkDir", "SubmitLine"),
    ("JobID", "State", "User", "Partition", "JobName", "WorkDir"),
)
"""sacct's fields, best first: the names of the files are there from Slurm 24.05 on, the command line from 21.08 on."""


def parse_jobs(text: str, separator: str, unread: list[str] | None = None) -> list[Job]:
    """Read `squeue -h -O` of `JOB_FIELDS`, each followed by `separator`.

    Raises:
        SlurmParseError: not that.
    """
    return list(jobs_by_text(text, separator, {}, unread).values())


def jobs_by_text(
    text: str, separator: str, known: Mapping[tuple[str, ...], Job], unread: list[str] | None = None
) -> dict[tuple[str, ...], Job]:
    """Return the jobs, in their order, by their texts.

    A job's name, comment, folder and files are its owner's texts and may contain anything, also newlines. They cannot
    forge a field or a job, since `separator` is random, new for each call, and secret. Jobs whose text is `known` from
    an earlier reading are not parsed again: most have not changed. A job that cannot be read is skipped where `unread`
    takes its name.

    Raises:
        SlurmParseError: not that, or nothing of it can be read.
    """
    pieces = text.split(separator)
    if pieces.pop().strip("\n") or len(pieces) % len(JOB_FIELDS):
        raise SlurmParseError("squeue's answer is cut short or in another form", text[:200].replace(separator, "|"))
    width, found = len(JOB_FIELDS), dict[tuple[str, ...], Job]()
    for start in range(0, len(pieces), width):
        # Each record but the first begins with the newline that ends the one before it.
        texts = (pieces[start].removeprefix("\n"), *pieces[start + 1 : start + width])
        job = known.get(texts)
        if job is None:
            job = read_one(f"job {texts[0][:12]}", unread, _job, dict(zip(JOB_FIELDS, texts, strict=True)))
        if job is not None:
            found[texts] = job
    check(found, unread)
    return found


def parse_excluded(text: str) -> dict[int, str]:
    """Read `squeue -h -o '%A %x'`: the excluded nodes of each job, by raw id."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        job_id, _, nodes = line.partition(" ")
        if job_id.isdigit():
            expand(nodes.strip())  # refuses a text that is not a list of nodes
            found.setdefault(int(job_id), plain(nodes.strip()))
    return found


def parse_past_job(text: str, separator: str, fields: Sequence[str], job: JobRef) -> Job | None:
    """Read `sacct -n -X -P` of one job's `fields`, divided by `separator`; the last record if there are several.

    Raises:
        SlurmParseError: the text has another form.
    """
    # A name may have lines of its own, so records are counted by their fields. Each ends with a newline.
    pieces = text.removesuffix("\n").split(separator)
    if not text.strip():
        return None
    step = len(fields) - 1
    if len(pieces) % step != 1 % step or len(pieces) < len(fields):
        raise SlurmParseError("sacct's answer is in another form", text[:200].replace(separator, "|"))
    last = dict(zip(fields, pieces[-len(fields) :], strict=True))
    return Job(
        ref=job,
        state=last["State"].split(" ", maxsplit=1)[0],
        user=last["User"],
        uid=-1,
        partition=last["Partition"],
        name=last["JobName"],
        work_dir=plain(last["WorkDir"]),
        std_out=plain(last.get("StdOut", "")) or _option(last.get("SubmitLine", ""), "-o", "--output"),
        std_err=plain(last.get("StdErr", "")) or _option(last.get("SubmitLine", ""), "-e", "--error"),
    )


def _option(line: str, short: str, long: str) -> str:
    """Return an option's value on sbatch's command line; empty if it is not there, or was set in the script."""
    words = [*line.split(), ""]  # a name with a blank in it is lost
    for word, after in pairwise(words):
        if word in (short, long):
            return after
        if word.startswith(f"{long}="):
            return word.removeprefix(f"{long}=")
        if word.startswith(short) and not word.startswith("--"):
            return word.removeprefix(short)
    return ""


def _job(fields: dict[str, str]) -> Job:
    state, _, flags = fields["state"].replace(",", "+").partition("+")
    if not re.fullmatch(r"[A-Z_]+", state):
        raise SlurmParseError("not a job state", fields["state"][:80])
    values: dict[str, Any] = {name: read(fields, field) for field, (name, read) in _JOB_VALUES.items()}
    if values["std_err"] == values["std_out"]:
        values["std_err"] = ""  # 24.11 prints nothing, other versions the same name
    return Job(
        ref=_job_ref(fields),
        state=state,
        completing="COMPLETING" in (state, *flags.split("+")),
        exclude=None,
        batch=fields["batchflag"] != "0",
        requeueable=fields["requeue"] != "0" and fields["batchflag"] != "0",
        **values,
    )


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


AS_OF = "as of"
"""The key, beside slurm.conf's own, for the time at which slurmctld gave the settings."""


def parse_settings(text: str) -> dict[str, str]:
    """Read `scontrol show config`: `Key = value` a line; headings have no `=`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    told = re.match(r"Configuration data as of ([0-9]{1,11})$", text, re.MULTILINE)
    return {key.strip(): value.strip() for key, _, value in pairs} | ({AS_OF: told[1]} if told else {})


def as_of_s(settings: Mapping[str, str]) -> int | None:
    """Return slurmctld's own time as it gave the settings, whole seconds since the epoch; None if it does not tell."""
    return int(settings[AS_OF]) if AS_OF in settings else None


def min_job_age_s(settings: Mapping[str, str]) -> float:
    """Return how long slurmctld shows a job that has ended; infinite if it does not forget jobs."""
    found = re.match(r"[0-9]{1,9}", settings.get("MinJobAge", ""))
    return (float(found[0]) or math.inf) if found else 0.0


def private_data(settings: Mapping[str, str]) -> frozenset[str]:
    """Return what ordinary users may not see of others: `jobs`, `nodes`, …; `unknown` if the settings do not say."""
    words = settings.get("PrivateData", "unknown").lower().split(",")
    return frozenset(words) - {"", "none", "(null)", "cloud"}


def cluster_name(settings: Mapping[str, str]) -> str:
    """Return the cluster's name out of the settings.

    Raises:
        SlurmParseError: it is not there.
    """
    name = settings.get("ClusterName", "")
    if not name or " " in name:
        raise SlurmParseError("scontrol show config names no cluster", str(settings)[:200])
    return name
