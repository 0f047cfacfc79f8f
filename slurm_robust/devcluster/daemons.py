"""Starts the daemons of a devcluster, waits for them, and ends them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slurm_robust.config import site as config
from slurm_robust.devcluster import accounting, conf, files, machine, members, process, record
from slurm_robust.devcluster.process import Command, CommandOptions, run
from slurm_robust.devcluster.record import ClusterRecord
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError, Spec

_FOREIGN = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SROBUST_", "MUNGE_")
_UP = frozenset({"idle", "allocated", "mixed", "completing", "reserved", "drained", "draining", "planned", "maint"})
_POLL_S = 0.05


def environment(paths: ClusterPaths) -> dict[str, str]:
    """Return our environment without variables of any other Slurm or site, and with those of this cluster."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return kept | files.exports(paths)


def choose(spec: Spec, name: str) -> tuple[str, str, list[str]]:
    """Return authentication, process tracking, and notices about what is missing."""
    notices = []
    # Only starting munged shows whether it runs.
    auth: str = spec.auth or ("munge" if shutil.which("munged", path=machine.search_path()) else "none")
    if spec.auth is None and auth == "none":
        notices.append("auth/none: munge is not installed. Any user of this machine can then speak as any other.")
    root = os.geteuid() == 0
    proctrack: str = spec.proctrack or ("cgroup" if root and machine.cgroup_works(name) else "linuxproc")
    if not root:
        notices.append(
            "not root: jobs run as you only, the prolog has no root rights, and processes are tracked by "
            "proctrack/linuxproc"
        )
    elif spec.proctrack is None and proctrack == "linuxproc":
        notices.append("proctrack/linuxproc: no writable cgroup v1 freezer here; signals then reach every process")
    return auth, proctrack, notices


def _role(now: ClusterRecord, name: str, argv: tuple[str, ...], log: str, cwd: Path) -> Command:
    values = environment(now.layout) | {members.MARK: str(now.directory)}
    return Command(name, argv, values, now.layout.log / log, cwd)


def mariadbd(now: ClusterRecord) -> Command:
    """Return the command of the accounting's database."""
    return _role(now, "mariadbd", accounting.mariadbd(now.layout), "mariadbd.out", now.layout.database)


def slurmdbd(now: ClusterRecord) -> Command:
    """Return the command of the accounting's slurmdbd."""
    role = _role(now, "slurmdbd", (machine.command("slurmdbd"), "-D"), "slurmdbd.out", now.layout.run)
    return replace(role, env={**role.env, **accounting.environment(now.layout)})


def slurmctld(now: ClusterRecord) -> Command:
    """Return the command of the controller."""
    return _role(now, "slurmctld", (machine.command("slurmctld"), "-D"), "slurmctld.out", now.layout.run)


def slurmd(now: ClusterRecord, node: str, *, booted: bool = False) -> Command:
    """Return the command of a node's slurmd; with `booted` it says that the node has just booted."""
    argv = (machine.command("slurmd"), "-D", "-N", node, *(("-b",) if booted else ()))
    return _role(now, f"slurmd.{node}", argv, f"slurmd.{node}.out", now.layout.spool(node))


def srobustd(now: ClusterRecord) -> Command:
    """Return the command of the project's own daemon."""
    argv = (sys.executable, "-m", "slurm_robust.cli.main", "daemon", "--config", str(now.layout.robust_yaml))
    return _role(now, "srobustd", argv, "srobustd.log", now.layout.run)


def nodewatch(now: ClusterRecord, node: str) -> Command:
    """Return the command of the service that watches a node."""
    # The name is not passed as a variable: with SLURMD_NODENAME, the process would count as a job's.
    argv = (sys.executable, "-m", "slurm_robust.cli.main", "nodewatch", "--json", "--node", node)
    return _role(now, f"nodewatch.{node}", argv, f"nodewatch.{node}.out", now.layout.run)


def start(now: ClusterRecord, roles: list[Command]) -> None:
    """Start daemons and add them to the record.

    Raises:
        DevClusterError: one of the daemons already runs.
    """
    with record.changed(now.directory) as table:
        for role in roles:
            if (old := table.get(role.name)) and old.alive:
                raise DevClusterError(f"{role.name} runs already, as pid {old.pid}")
        for role, started in zip(roles, process.launch(roles), strict=True):
            table[role.name] = started


def start_slurm(now: ClusterRecord, *, timeout_s: float = 10) -> None:
    """Start slurmctld, then every slurmd: a slurmd that finds no controller tries again only after a second."""
    start(now, [slurmctld(now)])
    deadline_s = time.monotonic() + timeout_s
    while not machine.listens(now.settings.ctld_port) and time.monotonic() < deadline_s:
        if "slurmctld" not in record.read(now.directory).live():
            return  # `wait_ready` reports why
        time.sleep(_POLL_S / 5)
    start(now, [slurmd(now, node) for node in conf.node_names(now.spec.nodes)])


def start_accounting(now: ClusterRecord, *, timeout_s: float = 15) -> None:
    """Start MariaDB, then slurmdbd; return when slurmdbd has made its tables and listens.

    Raises:
        DevClusterError: one of the two ended, or is not ready in this time; with the end of its log.
    """
    start(now, [mariadbd(now)])
    _await(now, "mariadbd", (now.layout.database / "socket").exists, timeout_s)
    start_slurmdbd(now, timeout_s=timeout_s)


def start_slurmdbd(now: ClusterRecord, *, timeout_s: float = 15) -> None:
    """Start slurmdbd; return when it listens.

    Raises:
        DevClusterError: slurmdbd already runs, ended, or does not listen in this time; with the end of its log.
    """
    start(now, [slurmdbd(now)])
    _await(now, "slurmdbd", lambda: machine.listens(now.settings.dbd_port), timeout_s)


def _await(now: ClusterRecord, name: str, ready: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not ready():
        ended = name not in record.read(now.directory).live()
        if ended or time.monotonic() > deadline_s:
            end = _tail(now.layout.log / f"{name}.log", 6) or _tail(now.layout.log / f"{name}.out", 6)
            raise DevClusterError(f"{name} {'ended' if ended else f'is not ready after {timeout_s:g} s'}:\n{end}")
        time.sleep(_POLL_S)


def start_nodewatch(now: ClusterRecord, nodes: tuple[str, ...], *, timeout_s: float = 20) -> None:
    """Start the service on these nodes; return when each has written its file of findings.

    Raises:
        DevClusterError: one service already runs, has ended, or wrote nothing in this time.
    """
    before = {node: _written_ns(now, node) for node in nodes}
    start(now, [nodewatch(now, node) for node in nodes])
    deadline_s = time.monotonic() + timeout_s
    for node in nodes:
        while _written_ns(now, node) == before[node]:
            ended = f"nodewatch.{node}" not in record.read(now.directory).live()
            if ended or time.monotonic() > deadline_s:
                end = _tail(now.layout.log / f"nodewatch.{node}.out", 6)
                raise DevClusterError(f"nodewatch of {node} {'ended' if ended else 'wrote nothing'}:\n{end}")
            time.sleep(_POLL_S / 5)


def _written_ns(now: ClusterRecord, node: str) -> int:
    try:
        return (now.layout.cache(node) / "findings.jsonl").stat().st_mtime_ns
    except OSError:
        return 0


def start_munged(now: ClusterRecord, *, timeout_s: float = 5) -> str:
    """Start the cluster's own munged; return why it does not run, or an empty text if it does."""
    layout = now.layout
    argv = (
        machine.command("munged"),
        "--foreground",
        f"--socket={layout.munge}/socket",
        f"--key-file={layout.munge}/key",
        f"--pid-file={layout.munge}/pid",
        f"--seed-file={layout.munge}/seed",
        f"--log-file={layout.munge}/log",
    )
    role = _role(now, "munged", argv, "munged.log", layout.munge)
    start(now, [role])
    deadline_s = time.monotonic() + timeout_s
    while not (layout.munge / "socket").exists():
        if "munged" not in record.read(now.directory).live():
            end = _tail(role.log, 3)
            return f"munged ended: {end.rpartition('Error: ')[2].strip() or end}"  # without the lines of its start
        if time.monotonic() > deadline_s:
            kill(now, "munged", signal.SIGKILL)
            return f"munged made no socket in {timeout_s:g} s"
        time.sleep(_POLL_S)
    return ""


def start_srobustd(now: ClusterRecord, *, timeout_s: float = 10) -> None:
    """Start srobustd as for `DevCluster.start_daemon`; return after this time even if it is not up."""
    start(now, [srobustd(now)])
    state = Path(config.load(now.layout.robust_yaml).daemon.state_dir)
    deadline_s = time.monotonic() + timeout_s
    while not (state.is_dir() and any(state.iterdir())) and time.monotonic() < deadline_s:
        if "srobustd" not in record.read(now.directory).live():
            raise DevClusterError(f"srobustd ended at once:\n{_tail(now.layout.log / 'srobustd.log', 12)}")
        time.sleep(_POLL_S)


def kill(now: ClusterRecord, name: str, number: int, *, timeout_s: float = 10) -> None:
    """Signal a daemon and wait until it has ended.

    Raises:
        DevClusterError: the daemon does not run, or does not end.
    """
    found = now.live().get(name)
    if found is None:
        raise DevClusterError(f"{name} does not run")
    found.signal(number)
    deadline_s = time.monotonic() + timeout_s
    while found.alive:
        if time.monotonic() > deadline_s:
            raise DevClusterError(f"{name} (pid {found.pid}) is still there {timeout_s:g} s after signal {number}")
        time.sleep(_POLL_S / 5)


def wait_ready(directory: Path, nodes: set[str] | None, timeout_s: float) -> None:
    """Wait as for `DevCluster.wait_ready`."""
    deadline_s = time.monotonic() + timeout_s
    awaited = "slurmctld"
    while True:
        now = record.read(directory)
        live = now.live()
        wanted = nodes if nodes is not None else {role.partition(".")[2] for role in live if role.startswith("slurmd.")}
        for role in ("slurmctld", *(f"slurmd.{node}" for node in sorted(wanted))):
            if role not in live:
                out, log = (_tail(now.layout.log / f"{role}.{kind}", 6) for kind in ("out", "log"))
                raise DevClusterError(f"{role} has ended:\n{out or log}")
        states = node_states(now, timeout_s)
        if states:
            late = sorted(node for node in wanted if states.get(node) not in _UP)
            if not late:
                return
            awaited = ", ".join(f"{node} is {states.get(node, 'unknown')}" for node in late[:4])
        if time.monotonic() > deadline_s:
            raise DevClusterError(
                f"not ready after {timeout_s:g} s: {awaited}\n{_tail(now.layout.log / 'slurmctld.log', 6)}"
            )
        time.sleep(_POLL_S)


def node_states(now: ClusterRecord, timeout_s: float) -> dict[str, str]:
    """Return Slurm's state of each node; empty if slurmctld does not answer."""
    # If no process listens, Slurm's commands only try again after a second.
    if not machine.listens(now.settings.ctld_port):
        return {}
    sinfo = ["sinfo", "-h", "-N", "-o", "%N %T"]
    options = CommandOptions(environment(now.layout), now.layout.work, timeout_s, check=False)
    try:
        shown = run(sinfo, options)
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split() for line in shown.stdout.splitlines()) if shown.returncode == 0 else {}


def down(directory: Path, *, keep: bool) -> None:
    """End the cluster as for `DevCluster.down`."""
    now = record.read(directory) if ClusterPaths(directory).record.exists() else None
    if now is None and not directory.is_dir():
        return
    if now is None and not files.is_left_over(directory):
        raise DevClusterError(f"{directory}: not a devcluster's folder; nothing in it was changed")

    def find() -> set[process.ClusterProcess]:
        # If somebody removed the record, remaining processes have our mark in their environment.
        return members.marked(directory) if now is None else members.everything(now)

    remains: list[str] = []
    for _ in range(2):
        # Twice: a process whose program is just being started has no environment to find it by, and may write later.
        if left := process.end(find):
            raise DevClusterError(f"{directory}: still running after SIGKILL: {[p.pid for p in left]}; try again")
        remains = [] if keep else files.remove(directory, now.settings if now is not None else None)
        if not remains:
            return
    raise DevClusterError(f"could not be removed: {', '.join(remains)}")


def _tail(path: Path, lines: int) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(text[-lines:])
