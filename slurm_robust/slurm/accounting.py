"""Reads one past job, or all runs in a stretch of time, from the site's accounting by `sacct`.

A job's name is its owner's text and may contain anything. It cannot forge a field or a run: `separator` is random, new
for each call, and was not known when the name was written. (Users of this machine can read it while sacct runs.)
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from slurm_robust.core.model import JobRef
from slurm_robust.slurm import parse
from slurm_robust.slurm.client import Job, PastRun
from slurm_robust.slurm.errors import SlurmError, SlurmParseError
from slurm_robust.slurm.unread import read_one
from slurm_robust.slurm.values import epoch_s

Run = Callable[[str, list[str]], str]
"""Runs one of Slurm's commands: what for, and its words."""

RUN_FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "User", "Account", "JobName", "Partition", "NodeList", "NNodes", "AllocTRES"),
    *("ReqTRES", "Submit", "Eligible", "Start", "End", "State", "ExitCode"),
)
"""The fields of `sacct -o`, in this order. The last one has no newline, so that one ends each record."""

_STATE = re.compile(r"[A-Z_]+")
_EXIT_CODE = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_COUNT = re.compile(r"[0-9]{1,10}")
_JOB = re.compile(r"[0-9]{1,10}(?:_(?:[0-9]{1,10}|\[[0-9,%:-]*(?:\.\.\.)?\])|\+[0-9]{1,4})?")
_NODES = re.compile(r"[A-Za-z0-9._,\[\]-]+")
_GPU = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,10})(?=,|$)")


def past_job(run: Run, job: JobRef, separator: str) -> Job | None:
    """Return a job from the accounting; None if the accounting does not know it."""
    for fields in parse.PAST_JOB_FIELDS:
        argv = ["sacct", "-n", "-X", "-P", f"--delimiter={separator}", "-j", job.address, "-o", ",".join(fields)]
        try:
            text = run(f"read job {job.address} from the accounting", argv)
        except SlurmError as error:
            if "invalid field" not in error.text.lower():
                raise
            continue  # older Slurm: it does not keep the names of the files
        return parse.parse_past_job(text, separator, fields, job)
    return None


def past_runs(run: Run, from_s: int, to_s: int, separator: str, unread: list[str]) -> list[PastRun]:
    """Return every run that was pending or running at some moment of this time; a requeued job has several.

    A run that cannot be read is skipped, and named in `unread`.
    """
    began, ended = (
        dt.datetime.fromtimestamp(at_s, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") for at_s in (from_s, to_s)
    )
    # All users, each run (`-D`), no steps; times are not cut to the window, so `-T` is not there.
    argv = ["sacct", "-n", "-a", "-D", "-X", "-P", f"--delimiter={separator}", "-S", began, "-E", ended]
    text = run(f"read the accounting from {began} to {ended} UTC", [*argv, "-o", ",".join(RUN_FIELDS)])
    return list(parse_past_runs(text, separator, unread))


def parse_past_runs(text: str, separator: str, unread: list[str] | None = None) -> Iterator[PastRun]:
    """Read `sacct -n -P` of `RUN_FIELDS`, divided by `separator`; one that cannot be read is skipped, as `unread` says.

    Raises:
        SlurmParseError: not that.
    """
    pieces = text.removesuffix("\n").split(separator)
    step = len(RUN_FIELDS) - 1
    if not text.strip():
        return
    if len(pieces) % step != 1:
        raise SlurmParseError("sacct's answer is cut short or in another form", text[:200].replace(separator, "|"))
    first = pieces[0]
    for start in range(1, len(pieces), step):
        # The last field of a record and the first of the next one share a piece.
        last, _, following = pieces[start + step - 1].partition("\n")
        run = read_one(f"job {first[:12]}", unread, _past_run, (first, *pieces[start : start + step - 1], last))
        if run is not None:
            yield run
        first = following


def _past_run(fields: tuple[str, ...]) -> PastRun:
    """Return one run, made of its texts in the order of `RUN_FIELDS`."""
    job_id, job, cluster, user, account, name, partition, nodes, count, allocated, requested = fields[:11]
    known = _state_and_count(fields[15], fields[16], count)
    if known is None or not _COUNT.fullmatch(job_id) or not _JOB.fullmatch(job):
        raise SlurmParseError("sacct's answer has a record in another form", "|".join(fields)[:200])
    state, node_count = known
    return PastRun(
        int(job_id),
        job,
        cluster,
        user,
        account,
        name,
        partition,
        nodes if _NODES.fullmatch(nodes) else "",  # `None assigned`
        node_count,
        gpus(allocated or requested),
        epoch_s(fields[11]) or None,
        epoch_s(fields[12]) or None,
        epoch_s(fields[13]) or None,
        epoch_s(fields[14]) or None,
        state,
        fields[16],
    )


@lru_cache(maxsize=4096)
def _state_and_count(text: str, exit_code: str, count: str) -> tuple[str, int] | None:
    """Return the state, without who cancelled it (`CANCELLED by 0`), and the count of nodes; None for another form.

    Few of these texts differ, among half a million runs.
    """
    state = text.partition(" ")[0]
    fit = _STATE.fullmatch(state) and _EXIT_CODE.fullmatch(exit_code) and _COUNT.fullmatch(count)
    return (state, int(count)) if fit else None


@lru_cache(maxsize=4096)
def gpus(tres: str) -> int:
    """Return the GPUs in a list of trackable resources; if only their types are tracked, the sum of the types."""
    found = _GPU.findall(tres)
    whole = [int(count) for kind, count in found if not kind]
    return whole[0] if whole else sum(int(count) for _, count in found)
