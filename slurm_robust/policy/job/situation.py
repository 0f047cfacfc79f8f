"""Defines, as values, everything on which the decision about an incident depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_robust.core.model import Failure, Mode, Verdict
from slurm_robust.policy.job import repeats
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.consequences import Silence
from slurm_robust.policy.job.ladder import LadderMemory, LadderOptions, TestOutcome

NODE_REPORT = "node: node_fault"
"""Signature of a failure that only nodes have reported: nothing is known to be wrong with the training."""


@dataclass(frozen=True)
class JobFacts:
    """The actions and names that Slurm allows for this job.

    Attributes:
        requeueable: Slurm would requeue the job: it is a batch job with the Requeue flag.
        addressable: Exactly this job can be named to Slurm (an array task by its `ARRAY_TASK` name).
        het_job: The job is a component of a het job, which is never acted on.
        survives_node_failure: `--no-kill`: the allocation outlives a dead node.
        requeued: The job was requeued at least once.
    """

    requeueable: bool = True
    addressable: bool = True
    het_job: bool = False
    survives_node_failure: bool = False
    requeued: bool = False


@dataclass(frozen=True)
class Situation:
    """Everything on which a decision depends.

    Attributes:
        verdict: The result of localisation.
        allocation_nodes: All nodes of the job.
        training_node_count: Nodes that an attempt needs.
        training_nodes: The nodes of this attempt; empty means all nodes but the healthy spares.
        healthy_spares: Nodes of the allocation that are unused and respond.
        dead_nodes: Nodes that Slurm shows DOWN, or that still have processes after SIGKILL.
        batch_node: The node of the batch script; if this node is dead, nothing can run in the allocation.
        excluded_named: Nodes that the command or the environment names: the program cannot run without them.
        ended: The attempt is known to have ended by itself: a rank failed, or the program returned. Ranks that only
            vanish may be finishing: the verdict says so.
        exit_code: The program's own exit code, None while unknown.
        failure: This failure's signature and nodes; None if there is none to compare.
        earlier_failures: The failures of this lineage since its last new step, oldest first.
        restarts_in_place: How many restarts in place there were since the last new step.
        fruitless: How many attempts in a row made no new step, this one included if it made none.
        fruitless_limit: `supervise.fruitless_attempts`.
        daemon: The site's daemon answers: True, False, or None while unknown.
        user_daemon: The owner runs a daemon for this job.
        action_limit_reached: The silence is longer than the site allows without an explanation.
        outage_wait_s: `supervise.outage_wait_s`.
        bad_loss: None if the loss is not known to be bad.
        failed_launches: Launches of the job that failed within an hour without a new step, this one included.
        failed_launches_limit: `supervise.fruitless_launches_per_hour`, 0 for none.
        resumes: A restart with the same command resumes training, or loses no more than a requeue would; False if it
            is known to start from zero, None if unknown.
        at_stake: A start from zero could lose something.
        mode: Does not change the plan, only its words: in `observe`, the caller does not carry it out.
        outside: The step was not launched by us: we cannot start the step again, and only a requeue is possible.
        older_failures: Error messages from before the last new step: they count against the node that they came from.
        full_disk: The disk that ended the attempt and is still full, and what to do; else empty.
        over: The attempt ended and none of its ranks is left to wait for others.
        code: The versions of the job's code.
        faulty_nodes: Nodes of the allocation that reported a fault for which the job should leave them → the reason.
            No attempt is started on them again, whatever the incident is about.
        ladder: What the training remembers of its ladder.
        ladder_options: The site's choices for the ladder.
        tested: What the tests of this incident have found, oldest first. The attempt was ended for them.
        apart_nodes: Nodes whose ranks stand apart from the others: in the smallest class of stacks, or in the parallel
            group in which the waiting ends.
        apart_group: All nodes of the parallel group to which the nodes that stand apart belong; empty if there is none.
        slow: Why the training is slow, if no node is known to be the slow one; else empty.
        standby_nodes: Standby nodes that could take the place of an evicted one.
        now_s: The time, seconds since the epoch.
        silence: What is known of the silence that the incident is about; None if it is about something else.
        continue_after_s: After so long a silence the ranks that the verdict names, which a signal has stopped, are
            continued; 0 if they are not.
    """

    verdict: Verdict
    allocation_nodes: tuple[str, ...]
    training_node_count: int
    training_nodes: tuple[str, ...] = ()
    healthy_spares: tuple[str, ...] = ()
    dead_nodes: tuple[str, ...] = ()
    batch_node: str = ""
    excluded_named: frozenset[str] = frozenset()
    ended: bool = False
    exit_code: int | None = None
    failure: Failure | None = None
    earlier_failures: tuple[Failure, ...] = ()
    restarts_in_place: int = 0
    fruitless: int = 0
    fruitless_limit: int = 3
    daemon: bool | None = None
    user_daemon: bool = False
    action_limit_reached: bool = False
    job: JobFacts = field(default_factory=JobFacts)
    outage_wait_s: float = 0.0
    bad_loss: BadLoss | None = None
    failed_launches: int = 0
    failed_launches_limit: int = 0
    resumes: bool | None = True
    at_stake: bool = True
    mode: Mode = Mode.ACT
    outside: bool = False
    older_failures: tuple[Failure, ...] = ()
    full_disk: str = ""
    over: bool = False
    faulty_nodes: Mapping[str, str] = field(default_factory=dict)
    code: CodeState = field(default_factory=CodeState)
    ladder: LadderMemory = field(default_factory=LadderMemory)
    ladder_options: LadderOptions = field(default_factory=LadderOptions)
    tested: tuple[TestOutcome, ...] = ()
    apart_nodes: tuple[str, ...] = ()
    apart_group: tuple[str, ...] = ()
    slow: str = ""
    standby_nodes: int = 0
    now_s: float = 0.0
    silence: Silence | None = None
    continue_after_s: float = 0.0

    @property
    def used_nodes(self) -> frozenset[str]:
        """Nodes that this attempt trains on."""
        return frozenset(self.training_nodes or self.allocation_nodes) - frozenset(self.healthy_spares)

    @property
    def trains(self) -> bool:
        """Whether nothing is known to be wrong with the training: only nodes have reported faults."""
        over = self.stopped or self.action_limit_reached or set(self.dead_nodes) & self.used_nodes
        return self.failure is not None and self.failure.signature == NODE_REPORT and not over

    @property
    def stopped(self) -> bool:
        """Whether nothing trains: the attempt has ended by itself, or was ended for tests."""
        return self.ended or bool(self.tested)

    @property
    def climb(self) -> LadderMemory:
        """The part of the ladder's memory that counts now: nothing of an old climb, if the training has settled."""
        return self.ladder.at(self.now_s, self.ladder_options.settled_s)

    @property
    def restarts_tried(self) -> int:
        """The number of restarts in place since the last new step, without those for unrelated failures."""
        return max(0, self.restarts_in_place - repeats.unrelated_before(self.failure, self.earlier_failures))
