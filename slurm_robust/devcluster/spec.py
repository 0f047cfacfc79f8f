"""Specifies a devcluster, and the paths of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MAX_NODES = 64


class DevClusterError(Exception):
    """The devcluster cannot do this; the message says what happened, to which part, and what to type next."""


@dataclass(frozen=True)
class Spec:
    """A devcluster as requested.

    Attributes:
        nodes: Number of slurmds, `n1` … `nN`; at most 64.
        gpus_per_node: Fake GPUs of each node; 0 gives nodes without any.
        cpus_per_node: CPUs that each node claims to have.
        memory_mb: Memory that each node claims to have, MiB.
        directory: Folder for everything; None makes a new one under the temporary directory.
        mode: `observe` or `act`, as in robust.yaml.
        standby: Nodes of the standby pool, as in robust.yaml.
        daemon: Start `srobustd`, too.
        nodewatch: Start a `srobust nodewatch` for each node, which follows the node's scripted kernel log.
        auth: None means munge if munged can run, else `none`.
        proctrack: None means cgroup if a trial shows that it works, else linuxproc.
        prolog: Install the project's prolog and epilog (without them the nodes run nothing of ours).
        slurm_conf_extra: Lines for slurm.conf; a key in them replaces the devcluster's own line.
        robust_yaml: Merged, at every depth, over the robust.yaml that the devcluster writes.
        slurmd_timeout_s: Silence after which slurmctld sets a node DOWN; 10 takes 18 s in all, 3 takes 11.
        kill_wait_s: From SIGTERM to SIGKILL at a job's end; 30 is Slurm's own default.
        epilog_sleep_s: Makes the epilog this slow, for benchmarks.
        accounting: Start slurmdbd on a MariaDB of its own, so that `sacct` works.
    """

    nodes: int = 6
    gpus_per_node: int = 8
    cpus_per_node: int = 8
    memory_mb: int = 2000
    directory: Path | None = None
    mode: str = "act"
    standby: int = 0
    daemon: bool = False
    nodewatch: bool = False
    auth: Literal["munge", "none"] | None = None
    proctrack: Literal["cgroup", "linuxproc"] | None = None
    prolog: bool = True
    slurm_conf_extra: str = ""
    robust_yaml: Mapping[str, Any] = field(default_factory=dict)
    slurmd_timeout_s: int = 10
    kill_wait_s: int = 30
    epilog_sleep_s: float = 0
    accounting: bool = False

    def check(self) -> None:
        """Refuse a specification that cannot work.

        Raises:
            DevClusterError: the message names the field and its allowed values.
        """
        if not 1 <= self.nodes <= MAX_NODES:
            raise DevClusterError(f"nodes: {self.nodes} is not between 1 and {MAX_NODES}")
        if not 0 <= self.gpus_per_node <= 64:
            raise DevClusterError(f"gpus_per_node: {self.gpus_per_node} is not between 0 and 64")
        if self.cpus_per_node < 1 or self.memory_mb < 1:
            raise DevClusterError("cpus_per_node and memory_mb: each must be at least 1")
        if not 0 <= self.standby < self.nodes:
            raise DevClusterError(f"standby: {self.standby} leaves no node of {self.nodes} to run jobs on")
        if self.mode not in ("observe", "act"):
            raise DevClusterError(f"mode: {self.mode!r} is neither 'observe' nor 'act'")
        if self.directory is not None and not re.fullmatch(r"[\w./+@~-]+", str(self.directory)):
            # slurm.conf has no quoting: Slurm would misread a blank or a % in a path.
            raise DevClusterError(f"directory: {str(self.directory)!r} has characters that slurm.conf cannot contain")


class ClusterPaths:
    """The paths of one devcluster, named to Slurm in slurm.conf.

    Attributes:
        record: The file with the running processes: `cluster.json`.
        lock: Held while the record changes.
        etc: slurm.conf and the files beside it.
        slurm_conf: The value of `SLURM_CONF`.
        env: Settings of prolog, epilog and health check; used instead of /etc/slurm_robust/env.
        robust_yaml: The value of `SROBUST_CONFIG`.
        log: Logs of every daemon.
        run: Pid files, and slurmctld's working directory.
        state: State of slurmctld and of srobustd.
        munge: Key, socket and log of the cluster's own munged.
        work: Working directory of commands and jobs; every user may write here.
        tmp: TMPDIR of jobs' tasks: files that killed ranks leave are removed with the cluster.
        cgroup: The mount point in cgroup.conf.
        slurmdbd_conf: slurmdbd.conf; readable to its owner alone, or slurmdbd refuses it.
        database: MariaDB's folder and socket, closed to all other users.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "cluster.json"
        self.lock = root / "cluster.lock"
        self.etc = root / "etc"
        self.slurm_conf = self.etc / "slurm.conf"
        self.env = self.etc / "env"
        self.robust_yaml = root / "robust.yaml"
        self.log = root / "log"
        self.run = root / "run"
        self.state = root / "state"
        self.munge = root / "munge"
        self.work = root / "work"
        self.tmp = root / "tmp"
        self.cgroup = root / "cgroup"
        self.slurmdbd_conf = self.etc / "slurmdbd.conf"
        self.database = root / "database"

    def spool(self, node: str) -> Path:
        """Return a slurmd's spool and working directory; its slurmstepds inherit it, and are recognised by it."""
        return self.root / "spool" / node

    def gpu(self, index: int) -> Path:
        """Return the path of a fake GPU."""
        return self.root / "dev" / f"gpu{index}"

    def kmsg(self, node: str) -> Path:
        """Return the path of a node's scripted kernel log."""
        return self.root / "kmsg" / node

    def cache(self, node: str) -> Path:
        """Return the folder in which a node's checks keep their verdicts."""
        return self.root / "cache" / node
