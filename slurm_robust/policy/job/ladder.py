"""Remembers which rungs of the ladder a training has climbed, for failures without evidence against a node. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_robust.config.site import LadderConfig
from slurm_robust.core.model import Plan, Road, TestName
from slurm_robust.core.text import joined

DAY_S = 86400.0
_MAX_LEFT = 200


class Symptom(str, enum.Enum):
    """The appearance of an incident if no evidence names a node."""

    HANG = "hang"
    """All ranks wait, or do not move, and no evidence tells for which rank."""
    CRASH = "crash"
    """A rank died by a signal or a CUDA or NCCL error, without an explanation."""
    BAD_LOSS = "bad_loss"
    """The loss or the gradient norm is NaN, infinite, or many times the usual one."""
    SLOW = "slow"
    """The training is slow, and it is not known which node is slow."""


class Rung(str, enum.Enum):
    """The ladder, from the bottom."""

    LEAVE_GROUP = "leave_group"
    """All nodes of the parallel group that stands apart are left, untested: a site's choice."""
    TEST_APART = "test_apart"
    """The tests that the symptom asks for, on the nodes that stand apart, with as many other nodes as partners."""
    TEST = "test"
    """The tests that the symptom asks for, on all nodes."""
    REATTEMPT = "reattempt"
    """Another attempt on the same nodes."""
    OTHER_CODE = "other_code"
    """The last version of the code that made progress."""
    REPLAY = "replay"
    """The training, or a model like it, on two different divisions of the nodes into groups."""
    REQUEUE = "requeue"
    """The job is requeued, with no node named."""


def joined_names(tests: Iterable[TestName]) -> str:
    """Return the names of the tests, such as `in-node and pairs`."""
    return " and ".join(test.value for test in tests)


@dataclass(frozen=True)
class TestOutcome:
    """The results of tests of a job's nodes, as far as a decision depends on them.

    Attributes:
        tests: The tests that were carried out.
        nodes: The nodes that they were carried out on.
        failed: Nodes that fail → the evidence, as a sentence.
        links: Pairs of nodes between which the link fails, though neither node does → the evidence.
        open: A sentence for each thing that the tests could not tell: undecided, not tested, ended early.
        took_s: From the end of the ranks to the verdict.
    """

    __test__ = False

    tests: tuple[TestName, ...] = ()
    nodes: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    took_s: float = 0.0

    @property
    def names(self) -> str:
        """The tests in words."""
        return joined_names(self.tests)

    @property
    def sentence(self) -> str:
        """A sentence with what the tests have found, the number of nodes and the time."""
        where = f"{self.names} on {len(self.nodes)} nodes in {self.took_s:.0f} s"
        if self.failed or self.links:
            return f"{where}: {joined([*self.failed.values(), *self.links.values()])}"
        if self.open:
            return f"{where} could not tell: {joined(self.open)}"
        return f"{where}: passed"


@dataclass(frozen=True)
class ClimbedRung:
    """One rung that a training has climbed.

    Attributes:
        tests: The tests of the rung, if it has any.
        at_s: When the rung was climbed, seconds since the epoch.
        found: The result of the rung, as a sentence; empty while tests run.
        nodes: The nodes that were tested, or the nodes of the group that was left.
        requeued: The job was requeued for the rung.
    """

    rung: Rung
    symptom: Symptom
    at_s: float
    found: str
    tests: tuple[TestName, ...] = ()
    nodes: tuple[str, ...] = ()
    requeued: bool = False


@dataclass(frozen=True)
class LadderMemory:
    """The memory of a training about its ladder, over restarts and requeues.

    Attributes:
        climbed: The rungs of this climb, oldest first.
        tested_at_s: When tests were begun, in all climbs of the last day, seconds since the epoch.
        left: Nodes that were evicted and are not used again.
        step: The highest step that the training has made.
        progressed: The training has made a new step since the last rung.
        requeued_at_s: When the rung of the requeue was climbed last, in any climb, seconds since the epoch; 0: never.
    """

    climbed: tuple[ClimbedRung, ...] = ()
    tested_at_s: tuple[float, ...] = ()
    left: tuple[str, ...] = ()
    step: int = -1
    progressed: bool = False
    requeued_at_s: float = 0.0

    def made_step(self, step: int) -> LadderMemory:
        """Return the memory after the training has made this step, which may be a new one."""
        if step <= self.step:
            return self
        return replace(self, step=step, progressed=bool(self.climbed))

    def went_back(self, step: int) -> LadderMemory:
        """Return the memory after training went back to this older step on purpose: later steps count as new again."""
        return replace(self, step=min(self.step, step))

    def at(self, now_s: float, settled_s: float) -> LadderMemory:
        """Return the part of the memory that counts now: the climb is over once the training has settled.

        The training has settled when it has made new steps, and climbed no rung for longer than `settled_s`.
        """
        if self.climbed and self.progressed and now_s - self.climbed[-1].at_s > settled_s:
            return replace(self, climbed=(), progressed=False)
        return self

    def tests_within_day(self, now_s: float) -> int:
        """Return how many rungs with tests were climbed within the last 24 hours."""
        return sum(now_s - at_s < DAY_S for at_s in self.tested_at_s)

    def requeued_within_day(self, now_s: float) -> bool:
        """Return whether the rung of the requeue was climbed within the last 24 hours."""
        return self.requeued_at_s > 0 and now_s - self.requeued_at_s < DAY_S

    def climbed_by(
        self, plan: Plan, symptom: Symptom | None, outcome: TestOutcome | None, at_s: float, *, found: str = ""
    ) -> LadderMemory:
        """Return what is remembered once this plan is carried out.

        Called twice for a plan with tests: before the tests begin, without an outcome, and at their end, with their
        outcome. If the supervisor dies in between, the rung is used up.
        """
        mine = replace(self, left=tuple(dict.fromkeys((*self.left, *plan.evict)))[-_MAX_LEFT:])
        if not plan.rung or symptom is None:
            return mine
        rung = ClimbedRung(
            Rung(plan.rung),
            symptom,
            at_s,
            found or (outcome.sentence if outcome is not None else ""),
            plan.tests,
            plan.test_nodes or (plan.evict if plan.rung == Rung.LEAVE_GROUP else ()),
            plan.road in (Road.SEAT, Road.OWNER_REQUEUE, Road.PLAIN_REQUEUE),
        )
        last = self.climbed[-1] if self.climbed else None
        if last is not None and plan.tests and not last.found and _same_tests(last, rung):
            return replace(mine, climbed=(*self.climbed[:-1], rung))
        begun = [s for s in self.tested_at_s if at_s - s < DAY_S]
        tested = (*begun, at_s) if plan.tests else self.tested_at_s
        requeued_at_s = at_s if rung.rung is Rung.REQUEUE else self.requeued_at_s
        mine = replace(mine, tested_at_s=tuple(tested), requeued_at_s=requeued_at_s)
        return replace(mine, climbed=(*self.climbed, rung), progressed=False)


def _same_tests(one: ClimbedRung, other: ClimbedRung) -> bool:
    return (one.rung, one.tests, one.nodes) == (other.rung, other.tests, other.nodes)


@dataclass(frozen=True)
class LadderOptions:
    """The site's choices, and what is possible for this job.

    Attributes:
        enabled: Whether the ladder is used at all.
        tests: The tests that may be made.
        replay_possible: A replay can be made.
        over_evict: A parallel group that stands apart at a hang is left as a whole.
        tests_per_day: How many rungs with tests may be climbed within 24 hours.
        settled_s: A climb is over after so long without a new rung, if the training made new steps.
    """

    enabled: bool = False
    tests: tuple[TestName, ...] = ()
    replay_possible: bool = False
    over_evict: bool = False
    tests_per_day: int = 6
    settled_s: float = 3600.0

    @classmethod
    def of(cls, config: LadderConfig, *, replay_possible: bool) -> LadderOptions:
        """Return the options as the site has written them."""
        return cls(
            enabled=bool(config.tests),
            tests=tuple(TestName(name) for name in config.tests),
            replay_possible=replay_possible,
            over_evict=config.over_evict,
            tests_per_day=config.tests_per_day,
            settled_s=config.settled_s,
        )
