"""Holds what all parts of one run of the supervisor share, and what does not change during the run.

Each part is given the session and the few other values that it needs, but never the supervisor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_robust.config.site import Config, NodecheckConfig, SuperviseConfig
from slurm_robust.core.model import BESIDE, Mode
from slurm_robust.diagnose.findings import Matcher
from slurm_robust.supervise.agent.messages import FromAgent, KernelRecords, NodeFindings
from slurm_robust.supervise.agent.node_ring import NodeFiles
from slurm_robust.supervise.clock import Clock
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.job import SupervisedJob
from slurm_robust.supervise.launch.attached_step import AttachedStep
from slurm_robust.supervise.launch.channel import Channel
from slurm_robust.supervise.launch.moved_paths import MovedPaths
from slurm_robust.supervise.launch.srun_command import SrunCommand
from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.supervise.launch.user_end import user_end
from slurm_robust.supervise.reported.agents import Agents
from slurm_robust.supervise.reported.fleet import Fleet
from slurm_robust.supervise.reported.kernel_records import KernelRecordJudge
from slurm_robust.supervise.reported.node_reports import NodeFaults


@dataclass
class Allocation:
    """The nodes of one run of the job, as far as the supervisor may use them.

    Attributes:
        all_nodes: The nodes that Slurm gave to the job.
        evicted: Nodes that no attempt may use any more.
        silent_nodes: Usable nodes whose agent does not answer.
    """

    all_nodes: tuple[str, ...]
    evicted: set[str] = field(default_factory=set)
    silent_nodes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """Nodes that were not evicted."""
        return self.without(())

    def without(self, more: Iterable[str]) -> list[str]:
        """Return the nodes that were not evicted, without these nodes."""
        left_out = self.evicted.union(more)
        return [n for n in self.all_nodes if n not in left_out]


@dataclass
class Session:
    """One run of the supervisor.

    Attributes:
        config: The site's choices, overridden by the user's options.
        channel: The channel to the launcher; None if somebody else started the training step (`srobust attach`).
        command: The user's command line; None if somebody else started the training step.
        attached: The watched step, if it is somebody else's; None to watch all of the job.
        lock: Shows whether another run of the job is supervised, too.
        checkpoint_dir: The folder in which checkpoints are looked up, empty for none.
        output_files: The job's output, for progress lines and last words.
        layout: Parallel sizes that the user gave.
        layout_order: The order in which these sizes count ranks, empty for Megatron's.
        code_dir: The folder whose snapshots the ranks run from, empty for none.
        code: The version of the code that is in force; None if the ranks run from the folder itself.
        replay: The command of a replay of the training, `same` for the job's own, or empty for a reference model.
        environment: The environment that srun starts from.
        fleet: The ranks and agents of the current attempt; it takes the agents' messages.
        agents: The agents on the nodes of the job.
        node_faults: What the nodes report of themselves, over all attempts.
        site_mode: The mode in the site's file, whatever the user has chosen for this job; None if there is no file.
        rules: The rules by which last lines are read; None before they are needed.
    """

    job: SupervisedJob
    config: Config
    folder: IncidentFolder
    channel: Channel | None = None
    command: SrunCommand | None = None
    attached: AttachedStep | None = None
    lock: SupervisorLock | None = None
    checkpoint_dir: str = ""
    output_files: tuple[Path, ...] = ()
    layout: Mapping[str, int] = field(default_factory=dict)
    layout_order: str = ""
    code_dir: str = ""
    code: MovedPaths | None = None
    replay: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Clock = field(default_factory=Clock)
    fleet: Fleet = field(default_factory=lambda: Fleet(""))
    node_faults: NodeFaults = field(default_factory=NodeFaults)
    site_mode: Mode | None = None
    rules: Matcher | None = None
    agents: Agents = field(init=False)
    allocation: Allocation = field(init=False)

    def __post_init__(self) -> None:
        self.job.claim = replace(self.job.claim, own_mode=self.config.mode.value)
        self.allocation = Allocation(self.job.nodes)
        self.agents = Agents(
            self.job.job_id,
            self.settings.tick_s,
            self.receive,
            lambda text: self.folder.log_event("note", text),
            clock=self.clock,
            files=node_files(self.config.nodecheck),
        )
        self._over_rdma = False
        """Whether several nodes of the job have moved much data over RDMA, in this attempt or an earlier one."""
        self._kernel_records = KernelRecordJudge(self.config.nodecheck, self.job.nodes)

    def receive(self, message: FromAgent) -> None:
        """Take one agent's message."""
        self.fleet.feed(message, self.clock.now_s())
        self._over_rdma = self._over_rdma or self.fleet.over_rdma
        if isinstance(message, KernelRecords):
            message = self._kernel_records.judge(message)
        if isinstance(message, NodeFindings):
            self.node_faults.take(message, self.clock.now_s(), over_rdma=self._over_rdma)

    def launched(self, command: SrunCommand) -> SrunCommand:
        """Return a command as it is launched: from the version of the code that is in force."""
        return self.code.command(command) if self.code is not None else command

    @property
    def settings(self) -> SuperviseConfig:
        """The configuration's section `supervise`."""
        return self.config.supervise

    @property
    def acting(self) -> bool:
        """Whether plans are carried out."""
        return self.config.mode is Mode.ACT and not (self.lock is not None and self.lock.shared)

    @property
    def why_idle(self) -> str:
        """The reason why plans are not carried out, as the story says it; empty if they are."""
        if self.acting:
            return ""
        return BESIDE if self.lock is not None and self.lock.accompanied else "observe mode"

    @property
    def srun_exit_code(self) -> int | None:
        """The exit code of srun, once it has ended, or once its step has ended and srun waits for us; else None."""
        if self.channel is not None:
            return self.channel.ended
        return self.attached.exit_code if self.attached is not None else None

    @property
    def user_end(self) -> str:
        """The name of the signal by which the user ends the step; empty if there is none, or srun is not ours."""
        if self.channel is None or self.command is None:
            return ""
        signals, now_s = self.channel.signals, self.clock.monotonic_s()
        return user_end(signals, now_s, self.command.values, self.environment)

    @property
    def launcher_gone(self) -> bool:
        """Whether our launcher has ended; False if there is none."""
        return self.channel is not None and self.channel.gone.is_set()

    @property
    def attached_srun_gone(self) -> bool:
        """Whether the srun of the attached step has ended."""
        return self.attached is not None and self.attached.over


def node_files(config: NodecheckConfig) -> NodeFiles:
    """Return the files that the agents of a site read."""
    ignore = config.options.get("rdma_ports", {}).get("ignore", ())
    ports = ",".join(map(str, ignore)) if isinstance(ignore, (list, tuple)) else ""
    return NodeFiles(config.cache_dir, config.kmsg, ports)
