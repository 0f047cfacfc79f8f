"""Finds the processes of this machine that belong to a devcluster: its daemons, its slurmstepds, its jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.devcluster import files, process
from slurm_robust.devcluster.process import ClusterProcess
from slurm_robust.devcluster.record import ClusterRecord

MARK = "SROBUST_DEVCLUSTER_MEMBER"
"""A variable of every daemon that a devcluster starts; its value is the cluster's folder."""


def stepds(record: ClusterRecord, node: str | None = None) -> list[ClusterProcess]:
    """Return the slurmstepds of a node, or of all nodes: they keep their slurmd's working directory."""
    spool = record.layout.spool("n1").parent
    found = []
    for pid in process.every_pid():
        stat = process.read_stat(pid)
        if stat is None or not stat.name.startswith("slurmstepd"):
            continue
        where = Path(process.working_directory(pid))
        if where.parent == spool and node in (None, where.name):
            found.append(ClusterProcess(pid, stat.start_ticks))
    return found


def jobs(record: ClusterRecord, job_id: int | None = None, node: str | None = None) -> list[ClusterProcess]:
    """Return jobs' processes on a node, or on all: batch scripts, ranks, prologs, and their children.

    They are found by their environment: the cluster's slurm.conf or name, and SLURMD_NODENAME, which only processes
    that slurmd started have (a shell that uses the cluster does not).
    """
    found = []
    for pid in process.every_pid():
        values = process.environ(pid)
        here = values.get("SLURMD_NODENAME")
        if here is None or node not in (None, here):
            continue
        ours = (
            values.get("SLURM_CONF") == str(record.layout.slurm_conf)
            or values.get("SLURM_CLUSTER_NAME") == record.settings.name
        )
        if ours and (job_id is None or values.get("SLURM_JOB_ID") == str(job_id)):
            found.append(pid)
    return _identified(found)


def of_node(record: ClusterRecord, node: str) -> set[ClusterProcess]:
    """Return all processes that end when a node loses power, its slurmd included."""
    roots = {*stepds(record, node), *jobs(record, node=node)}
    live = record.live()
    roots |= {live[role] for role in (f"slurmd.{node}", f"nodewatch.{node}") if role in live}
    return _with_descendants(roots)


def everything(record: ClusterRecord) -> set[ClusterProcess]:
    """Return all processes that belong to the cluster."""
    roots = {*record.live().values(), *_marked(record.directory), *stepds(record), *jobs(record), *_grouped(record)}
    return _with_descendants(roots)


def marked(directory: Path) -> set[ClusterProcess]:
    """Return processes with the mark of a folder's cluster, and their children."""
    return _with_descendants(set(_marked(directory)))


def _marked(directory: Path) -> list[ClusterProcess]:
    return _identified(pid for pid in process.every_pid() if process.environ(pid).get(MARK) == str(directory))


def _grouped(record: ClusterRecord) -> list[ClusterProcess]:
    """Return processes in the cluster's cgroups, with any environment; thawed, so that they can be ended."""
    if record.settings.proctrack != "cgroup":
        return []
    pids: set[int] = set()
    for listing in files.cgroup_top(record.settings).glob("**/cgroup.procs"):
        with contextlib.suppress(OSError):
            (listing.parent / "freezer.state").write_text("THAWED", encoding="ascii")
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in listing.read_text(encoding="ascii").split()}
    return _identified(pids & set(process.every_pid()))


def _with_descendants(roots: set[ClusterProcess]) -> set[ClusterProcess]:
    below = process.descendants(root.pid for root in roots if root.alive)
    return roots | set(_identified(below))


def _identified(pids: Iterable[int]) -> list[ClusterProcess]:
    return [found for pid in pids if (found := process.identify(pid)) is not None]
