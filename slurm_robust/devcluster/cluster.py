"""A devcluster: a private, real, multi-node Slurm on this machine, whose parts can be killed at will.

cluster = DevCluster.up(Spec(nodes=4))
cluster.run(["srun", "--immediate=10", "-N4", "hostname"])
cluster.kill_slurmd("n3")
cluster.down()
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_robust.devcluster import accounting, conf, daemons, files, machine, members, process, record
from slurm_robust.devcluster.conf import Settings
from slurm_robust.devcluster.process import ClusterProcess, CommandError, CommandOptions, run
from slurm_robust.devcluster.record import ClusterRecord
from slurm_robust.devcluster.spec import ClusterPaths, DevClusterError, Spec

__all__ = ["CommandError", "DevCluster", "DevClusterError", "Spec"]


class DevCluster:
    """A devcluster that is up, used from any process of its user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def up(cls, spec: Spec, *, timeout_s: float = 30) -> DevCluster:
        """Start a cluster; return when every node is ready for jobs. If the start fails, leave nothing behind.

        Raises:
            DevClusterError: the cluster is not up after `timeout_s`; the message has the end of the log that shows why.
        """
        spec.check()
        for name in ("slurmctld", "slurmd", "srun", *(accounting.COMMANDS if spec.accounting else ())):
            machine.command(name)
        directory = files.make_directory(spec)
        cluster = cls(directory)
        with machine.port_block() as port:
            try:
                settings = cluster._claim(spec, port)
            except BaseException:
                with contextlib.suppress(OSError):
                    directory.rmdir()  # only if it is empty: another cluster may use it by now
                raise
            try:
                cluster._prepare(cluster.spec, settings)
                if spec.accounting:
                    daemons.start_accounting(cluster.record)
                daemons.start_slurm(cluster.record)
                cluster.wait_ready(timeout_s=timeout_s)
                if spec.nodewatch:
                    daemons.start_nodewatch(cluster.record, cluster.node_names)
                if spec.daemon:
                    cluster.start_daemon()
            except BaseException:
                cluster.down()
                raise
        return cluster

    @classmethod
    def attach(cls, directory: str | os.PathLike[str]) -> DevCluster:
        """Return the cluster of a folder.

        Raises:
            DevClusterError: there is no cluster.
        """
        found = record.read(Path(directory).resolve())
        return cls(found.directory)

    def _claim(self, spec: Spec, port: int) -> Settings:
        """Claim the folder for this cluster; before this has succeeded we must not end or remove anything in it."""
        name = f"dev{secrets.token_hex(4)}"
        auth, proctrack, notices = daemons.choose(spec, name)
        settings = Settings(name, pwd.getpwuid(os.geteuid()).pw_name, auth, proctrack, port, machine.slurm_version())
        spec = dataclasses.replace(spec, directory=self.directory)
        record.create(ClusterRecord(self.directory, spec, settings, {}, tuple(notices), record.boot_id()))
        return settings

    def _prepare(self, spec: Spec, settings: Settings) -> None:
        files.write(spec, settings, self.layout)
        if settings.auth == "munge" and (problem := daemons.start_munged(self.record)):
            if spec.auth == "munge":
                raise DevClusterError(f"munged does not run here: {problem}; ask for auth none instead")
            notice = f"auth/none instead of munge: {problem}. Any user of this machine can then speak as any other."
            settings = dataclasses.replace(settings, auth="none")
            record.change_settings(self.directory, settings, notice)
            files.write_slurm_conf(spec, settings, self.layout)
        if spec.accounting:
            accounting.prepare(self.layout)

    @property
    def record(self) -> ClusterRecord:
        """The present content of `cluster.json`."""
        return record.read(self.directory)

    @property
    def spec(self) -> Spec:
        """The specification, with its directory filled in."""
        return self.record.spec

    @property
    def layout(self) -> ClusterPaths:
        """The paths of the cluster's files."""
        return ClusterPaths(self.directory)

    @property
    def name(self) -> str:
        """Slurm's ClusterName."""
        return self.record.settings.name

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about what is missing on this machine or for this user."""
        return self.record.notices

    @property
    def node_names(self) -> tuple[str, ...]:
        """`n1` … `nN`."""
        return conf.node_names(self.spec.nodes)

    @property
    def exports(self) -> dict[str, str]:
        """The variables with which a shell uses this cluster."""
        return files.exports(self.layout)

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for processes that use this cluster: ours without the variables of any other Slurm."""
        return daemons.environment(self.layout)

    def run(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        timeout_s: float = 30,
        user: str | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,  # noqa: A002 (as subprocess.run calls it)
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's environment, with its output captured as text.

        The options are those of `CommandOptions`, but `env` is added to the cluster's environment, and without `cwd`
        the command runs in the cluster's common `work` folder, where every user may write.

        Raises:
            CommandError: the command failed, and `check` is set.
            subprocess.TimeoutExpired: the command took too long.
        """
        options = CommandOptions(self.env | dict(env or {}), cwd or self.layout.work, timeout_s, user, check, input)
        return run(args, options)

    def wait_ready(self, nodes: Iterable[str] | None = None, *, timeout_s: float = 30) -> None:
        """Wait until slurmctld answers and nodes are up and respond; a drained node counts as up.

        Without `nodes`, wait for all nodes whose slurmd runs.

        Raises:
            DevClusterError: the nodes are not ready in this time, or a daemon has ended; with the end of its log.
        """
        daemons.wait_ready(self.directory, None if nodes is None else set(nodes), timeout_s)

    def slurmd_pid(self, node: str) -> int | None:
        """Return the pid of a node's slurmd, or None if it does not run."""
        return self._pid(f"slurmd.{node}")

    @property
    def slurmctld_pid(self) -> int | None:
        """Pid of slurmctld, or None if it does not run."""
        return self._pid("slurmctld")

    @property
    def slurmdbd_pid(self) -> int | None:
        """Pid of slurmdbd, or None if it does not run."""
        return self._pid("slurmdbd")

    @property
    def daemon_pid(self) -> int | None:
        """Pid of srobustd, or None if it does not run."""
        return self._pid("srobustd")

    def _pid(self, role: str) -> int | None:
        found = self.record.live().get(role)
        return found.pid if found else None

    def processes(self, job_id: int | None = None, node: str | None = None) -> list[int]:
        """Return the pids of jobs' processes, found by their environment: of one job, of one node, or all."""
        return sorted(found.pid for found in members.jobs(self.record, job_id, node))

    def kill_slurmd(self, node: str, processes: bool = True) -> None:
        """Let a node lose power: SIGKILL for its slurmd, its slurmstepds and its jobs' processes.

        With `processes` False kill its slurmd alone, as if only slurmd crashed.

        Raises:
            DevClusterError: no such node, or a process did not end.
        """
        self._known(node)
        now = self.record
        slurmd = now.live().get(f"slurmd.{node}")
        if slurmd:
            slurmd.signal(signal.SIGKILL)
        if processes:
            # A slurmstepd that outlives its tasks would report their end; a node without power reports nothing.
            for stepd in members.stepds(now, node):
                stepd.signal(signal.SIGSTOP)
            left = process.end(lambda: members.of_node(now, node))
        else:
            left = process.end(lambda: [slurmd] if slurmd else [])
        if left:
            raise DevClusterError(f"{node}: still there after SIGKILL: {[p.pid for p in left]}")

    def freeze_slurmd(self, node: str, *, tasks: bool = False) -> None:
        """Stop a node's slurmd and slurmstepds, as if the node no longer answered; with `tasks` its jobs, too."""
        self._signal_node(node, signal.SIGSTOP, tasks=tasks)

    def thaw_slurmd(self, node: str, *, tasks: bool = False) -> None:
        """Let a frozen node continue; with `tasks` its jobs, too."""
        self._signal_node(node, signal.SIGCONT, tasks=tasks)

    def _signal_node(self, node: str, number: int, *, tasks: bool) -> None:
        self._known(node)
        now = self.record
        slurmd = now.live().get(f"slurmd.{node}")
        if slurmd is None:
            raise DevClusterError(f"{node}: its slurmd does not run")
        slurmd.signal(number)
        done: set[ClusterProcess] = set()
        # Processes that were started before their parent got its signal are found by looking again.
        while new := {*members.stepds(now, node), *(members.jobs(now, node=node) if tasks else ())} - done:
            for found in new:
                found.signal(number)
            done |= new

    def start_slurmd(self, node: str, *, booted: bool = False) -> None:
        """Start a node again; with `booted` Slurm sees a reboot. `wait_ready` waits until the node is up."""
        self._known(node)
        daemons.start(self.record, [daemons.slurmd(self.record, node, booted=booted)])
        if self.spec.nodewatch and self._pid(f"nodewatch.{node}") is None:
            self.start_nodewatch(node)

    def start_nodewatch(self, node: str) -> None:
        """Start a node's nodewatch, and wait until it has written its file of findings.

        Raises:
            DevClusterError: nodewatch already runs, or ended at once; with the end of its log.
        """
        self._known(node)
        daemons.start_nodewatch(self.record, (node,))

    def kill_nodewatch(self, node: str, sig: int = signal.SIGKILL, *, timeout_s: float = 10) -> None:
        """End a node's nodewatch by a signal, and wait until it has ended."""
        self._known(node)
        daemons.kill(self.record, f"nodewatch.{node}", sig, timeout_s=timeout_s)

    def findings(self, node: str) -> Path:
        """Return the folder with a node's `findings.jsonl`, as `node_findings.read` takes it."""
        self._known(node)
        return self.layout.cache(node)

    def kill_slurmctld(self) -> None:
        """Send SIGKILL to slurmctld."""
        daemons.kill(self.record, "slurmctld", signal.SIGKILL)

    def start_slurmctld(self) -> None:
        """Start slurmctld again, from the state that it saved; `wait_ready` waits until it answers."""
        daemons.start(self.record, [daemons.slurmctld(self.record)])

    def kill_slurmdbd(self) -> None:
        """Send SIGKILL to slurmdbd: slurmctld keeps its records, and sends them when slurmdbd runs again."""
        daemons.kill(self.record, "slurmdbd", signal.SIGKILL)

    def start_slurmdbd(self) -> None:
        """Start slurmdbd again, and wait until it listens."""
        daemons.start_slurmdbd(self.record)

    def start_daemon(self) -> None:
        """Start srobustd, and wait until its state folder has files; its log is `log/srobustd.log`.

        Raises:
            DevClusterError: it runs already, or ended at once; with the end of its log.
        """
        daemons.start_srobustd(self.record)

    def kill_daemon(self, sig: int = signal.SIGKILL, *, timeout_s: float = 10) -> None:
        """End srobustd by a signal, and wait until it has ended."""
        daemons.kill(self.record, "srobustd", sig, timeout_s=timeout_s)

    def kmsg(self, node: str) -> Path:
        """Return the path of a node's scripted kernel log, which its checks read instead of /dev/kmsg."""
        self._known(node)
        return self.layout.kmsg(node)

    def add_kmsg(self, node: str, text: str) -> None:
        """Add lines to a node's kernel log: each line is a message, as /dev/kmsg would show it now."""
        files.append_kmsg(self.kmsg(node), text)

    def _known(self, node: str) -> None:
        if node not in self.node_names:
            raise DevClusterError(f"{node}: no such node; there are {conf.folded(self.spec.nodes)}")

    def down(self, *, keep: bool = False) -> None:
        """End everything that the cluster and its jobs started, and remove its folder; may be called repeatedly.

        `keep` leaves the folder with logs and configuration.

        Raises:
            DevClusterError: a process did not end, or a file could not be removed; the message says which.
        """
        daemons.down(self.directory, keep=keep)
