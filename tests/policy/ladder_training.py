"""A small simulated training for the ladder: faults with a hidden truth, tests that find them or not, and time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Plan, Road, Suspect, TestName, Verdict
from slurm_robust.policy.job.bad_loss import BadLoss
from slurm_robust.policy.job.climb import after_plan, symptom
from slurm_robust.policy.job.code_versions import CodeState
from slurm_robust.policy.job.decide import decide
from slurm_robust.policy.job.eviction import max_evictions
from slurm_robust.policy.job.ladder import DAY_S, LadderMemory, LadderOptions, Rung, Symptom, TestOutcome
from slurm_robust.policy.job.situation import JobFacts, Situation
from slurm_robust.supervise.lineage.lineage import Lineage

STEPS = 1_000
MOST_INCIDENTS = 500
ATTEMPTS = (Rung.REATTEMPT, Rung.OTHER_CODE, Rung.REPLAY, Rung.REQUEUE)
REQUEUES = (Road.SEAT, Road.OWNER_REQUEUE, Road.PLAIN_REQUEUE)


@dataclass
class Fault:
    """What is wrong, in truth: a node, a link, the code from this version on, or something that passes."""

    symptom: Symptom
    nodes: tuple[str, ...] = ()
    version: int = 0
    attempts: int = 10**6
    explicit: bool = False
    progresses: bool = False

    def shows(self, used: list[str], version: int) -> bool:
        """Whether an attempt on these nodes, with this version of the code, has it."""
        of_nodes = not self.nodes or set(self.nodes) <= set(used)
        return self.attempts > 0 and of_nodes and (not self.version or version >= self.version)


@dataclass
class Climbed:
    """A rung as the simulation saw it."""

    rung: Rung
    symptom: Symptom | None
    tests: tuple[TestName, ...]
    at_s: float


@dataclass
class Shadow:
    """The rungs of this climb, counted apart from the memory under test."""

    rungs: list[Climbed] = field(default_factory=list)
    tests_at_s: list[float] = field(default_factory=list)
    progressed: bool = False

    def begin(self, now_s: float, settled_s: float) -> None:
        """A new incident: the climb is over where the training has settled."""
        if self.rungs and self.progressed and now_s - self.rungs[-1].at_s > settled_s:
            self.rungs, self.progressed = [], False

    def climb(self, plan: Plan, which: Symptom | None, now_s: float, per_day: int) -> None:
        """One more rung, which must be within all bounds."""
        new = Climbed(Rung(plan.rung), which, plan.tests, now_s)
        assert which is not None
        if new.rung in ATTEMPTS:
            highest = max((ATTEMPTS.index(c.rung) for c in self.rungs if c.rung in ATTEMPTS), default=-1)
            assert ATTEMPTS.index(new.rung) > highest, f"down, or twice: {new.rung}"
        elif new.rung is Rung.LEAVE_GROUP:
            assert not self.rungs, "a group is left at the bottom, or not at all"
        else:
            assert not any(c.rung in ATTEMPTS and c.symptom is which for c in self.rungs), "down to the tests"
            before = [c for c in self.rungs if c.rung is Rung.TEST or c.rung is new.rung]
            assert not {t for c in before for t in c.tests} & set(new.tests), "the same tests twice"
        if plan.tests:
            assert sum(now_s - at_s < DAY_S for at_s in self.tests_at_s) < per_day, "too many tests within a day"
            self.tests_at_s.append(now_s)
        self.rungs.append(new)
        self.progressed = False


class Training:
    """One training, from its start to its end, with random faults. `honest`: tests never speak against a good node."""

    def __init__(self, seed: int, *, honest: bool) -> None:
        self.random = chance = random.Random(seed)
        self.honest = honest
        self.size = chance.choice([1, 2, 3, 4, 5, 8, 16, chance.randint(6, 64)])
        self.fresh = 0
        self.allocation = [self._new_node() for _ in range(self.size + chance.choice([0, 0, 1, 3]))]
        self.evicted: set[str] = set()
        self.now_s = 1e9
        self.step = 0
        self.lineage = Lineage("t")
        self.shadow = Shadow()
        self.requeueable = chance.random() < 0.7
        self.code = CodeState(in_force=3, proven=(1, 2, 3)) if chance.random() < 0.6 else CodeState()
        offered = tuple(t for t in (TestName.IN_NODE, TestName.PAIRS, TestName.ALIGNMENT) if chance.random() < 0.9)
        self.options = LadderOptions(
            bool(offered),
            offered,
            replay_possible=chance.random() < 0.6,
            over_evict=not honest and chance.random() < 0.5,
            tests_per_day=chance.choice([0, 1, 6, 6, 6]),
            settled_s=chance.choice([600.0, 3600.0]),
        )
        self.resumes = chance.choice([True, True, False, None])
        self.rollbacks = 0
        self.recall = chance.choice([0.0, 0.7, 1.0])
        self.faults = [self._new_fault() for _ in range(chance.randint(1, 4))]
        self.incidents = 0
        self.roads: list[Road] = []

    def _new_node(self) -> str:
        self.fresh += 1
        return f"n{self.fresh:03}"

    def _new_fault(self) -> Fault:
        chance = self.random
        kind = chance.choice(["node", "node", "link", "program", "code", "passes", "dead"])
        fault = Fault(chance.choice(list(Symptom)), progresses=chance.random() < 0.3)
        if kind == "node":
            fault.nodes = (chance.choice(self.allocation),)
        elif kind == "dead":
            fault.nodes, fault.explicit, fault.symptom = (chance.choice(self.allocation),), True, Symptom.CRASH
        elif kind == "link" and self.size > 1:
            first, second = chance.sample(self.allocation, 2)
            fault.nodes = (min(first, second), max(first, second))
        elif kind == "code":
            fault.version = chance.randint(2, 3)
        elif kind == "passes":
            fault.attempts = chance.randint(1, 4)
        return fault

    @property
    def used(self) -> list[str]:
        """Nodes that the attempt trains on."""
        return [n for n in self.allocation if n not in self.evicted][: self.size]

    @property
    def spares(self) -> list[str]:
        """The other nodes of the allocation; Slurm may have given an evicted one back."""
        used = set(self.used)
        return [n for n in self.allocation if n not in used]

    def run(self) -> str:
        """How it ended."""
        while self.step < STEPS:
            fault = next((f for f in self.faults if f.shows(self.used, self.code.in_force)), None)
            if fault is None:
                self._train(self.random.choice([50, 500, STEPS]))
                self.faults = self.faults[1:]
                continue
            if fault.progresses:
                self._train(self.random.randint(1, 60))
            else:
                self.now_s += self.random.choice([20.0, 300.0, 4000.0])
            fault.attempts -= 1
            self.incidents += 1
            assert self.incidents < MOST_INCIDENTS, "it does not end"
            if self._incident(fault) is Road.STOP:
                return "stopped"
        return "finished"

    def _train(self, steps: int) -> None:
        self.step += steps
        self.now_s += steps * self.random.choice([1.0, 60.0])
        self.code = self.code.made_step()
        self.shadow.progressed = bool(self.shadow.rungs)

    # -- one incident -------------------------------------------------------------------------------------------------

    def _incident(self, fault: Fault) -> Road:
        known = self.lineage.until(self.step)
        failure = None if fault.symptom is Symptom.SLOW else self._failure(fault)
        outcomes: list[TestOutcome] = []
        ladder = known.ladder
        self.shadow.begin(self.now_s, self.options.settled_s)
        while True:
            assert len(outcomes) < 8, "tests without end"
            s = replace(self._situation(fault, known, failure), ladder=ladder, tested=tuple(outcomes))
            plan = decide(s)
            self._check(s, plan, fault)
            ladder = self._kept(after_plan(s, plan))
            if plan.road is not Road.TEST:
                break
            outcomes.append(self._test(plan, fault))
            self.now_s += outcomes[-1].took_s
            if self.random.random() < 0.95:  # else the supervisor dies at the end of the tests
                ladder = self._kept(after_plan(replace(s, ladder=ladder, now_s=self.now_s), plan, outcomes[-1]))
                self.shadow.rungs[-1].at_s = self.now_s
        # A test that ran ended the attempt; so did every other plan, but for that to go on watching.
        if plan.road is Road.ALERT_ONLY:
            self._train(self.random.randint(1, 400))
            return plan.road
        self.lineage = self._remember(plan, failure, ladder)
        self._carry_out(plan)
        return plan.road

    def _remember(self, plan: Plan, failure: Failure | None, ladder: LadderMemory) -> Lineage:
        before = replace(self.lineage, ladder=ladder)
        in_place = plan.road is Road.RESTART_IN_PLACE
        after = before.after(self.step, -1, failure, in_place=in_place, excused=plan.code > 0)
        return msgspec.json.decode(msgspec.json.encode(after), type=Lineage)

    def _kept(self, memory: LadderMemory) -> LadderMemory:
        again = msgspec.json.decode(msgspec.json.encode(memory), type=LadderMemory)
        assert again == memory
        return again

    def _failure(self, fault: Fault) -> Failure:
        if fault.symptom is Symptom.CRASH:
            return Failure("died: SIGSEGV", (), FailureCause.EITHER)
        return Failure("hang at all_reduce", (), FailureCause.EITHER)

    def _situation(self, fault: Fault, known: Lineage, failure: Failure | None) -> Situation:
        chance = random.Random(f"{self.incidents} {self.now_s}")  # the same for each decision of an incident
        share = chance.choice([0.0, 0.1, 0.6])
        apart = [n for n in self.used if n in fault.nodes or chance.random() < share]
        suspects: tuple[Suspect, ...] = ()
        if fault.symptom is Symptom.HANG and chance.random() < 0.3:
            suspects = (Suspect(chance.choice(self.used), (0,), 0.4, "its rank stands apart", infrastructure=False),)
        conclusion = Conclusion.CULPRIT if suspects else Conclusion.UNDETERMINED
        slow = fault.symptom is Symptom.SLOW
        ended = fault.symptom in (Symptom.CRASH, Symptom.BAD_LOSS)
        bad = BadLoss("NaN", 5, self.rollbacks) if fault.symptom is Symptom.BAD_LOSS else None
        return Situation(
            Verdict(conclusion, "nothing is known", suspects, corroborated=not slow),
            tuple(self.allocation),
            self.size,
            tuple(self.used),
            healthy_spares=tuple(self.spares),
            dead_nodes=fault.nodes if fault.explicit else (),
            batch_node="",
            ended=ended,
            exit_code=1 if ended else None,
            failure=failure,
            earlier_failures=known.failures,
            older_failures=known.older,
            restarts_in_place=known.restarts_in_place,
            fruitless=0 if self.step > self.lineage.reached else self.lineage.fruitless + 1,
            daemon=True,
            action_limit_reached=fault.symptom is Symptom.HANG,
            job=JobFacts(requeueable=self.requeueable, survives_node_failure=True),
            bad_loss=bad,
            resumes=self.resumes,
            code=self.code,
            ladder_options=self.options,
            apart_nodes=tuple(apart),
            apart_group=tuple(apart) if len(apart) > 1 else (),
            standby_nodes=chance.choice([0, 64]),
            slow="the steps take twice as long" if slow else "",
            now_s=self.now_s,
        )

    def _test(self, plan: Plan, fault: Fault) -> TestOutcome:
        chance, nodes = self.random, plan.test_nodes
        found: dict[str, str] = {}
        links: dict[tuple[str, str], str] = {}
        if not self.honest and chance.random() < 0.4:
            found = {n: f"{n} fails" for n in chance.sample(nodes, chance.randint(0, len(nodes)))}
        if not self.honest and chance.random() < 0.4 and len(nodes) > 2:
            for _ in range(chance.randint(1, 4)):
                first, second = chance.sample(nodes, 2)
                links[min(first, second), max(first, second)] = f"the link between {first} and {second} fails"
        if set(fault.nodes) <= set(nodes) and chance.random() < self.recall:
            if len(fault.nodes) == 1:
                found[fault.nodes[0]] = f"{fault.nodes[0]} fails"
                others = [n for n in nodes if n not in fault.nodes]
                if others and chance.random() < 0.3:
                    links[fault.nodes[0], chance.choice(others)] = "the link fails"
            elif len(fault.nodes) == 2 and TestName.PAIRS in plan.tests:
                links[fault.nodes[0], fault.nodes[1]] = "the link fails"
        doubts = ("a node said nothing for ten seconds",) if chance.random() < 0.3 else ()
        return TestOutcome(plan.tests, nodes, found, links, doubts, took_s=chance.choice([5.0, 120.0]))

    def _carry_out(self, plan: Plan) -> None:
        self.roads.append(plan.road)
        if plan.roll_back:
            self.rollbacks += 1
        if plan.code:
            self.code = self.code.switched(plan.code, back=True)
        self.evicted |= set(plan.evict)
        self.allocation = [n for n in self.allocation if n not in plan.evict]
        if plan.road in REQUEUES:
            if self.random.random() < 0.3:  # Slurm gives other nodes than before
                self.allocation = self.allocation[self.random.randint(0, len(self.allocation)) :]
            while len(self.used) < self.size:
                self.allocation.append(self._new_node())
            if self.evicted and self.random.random() < 0.2:
                self.allocation.append(self.random.choice(sorted(self.evicted)))
        assert plan.road is Road.STOP or len(self.used) == self.size

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _check(self, s: Situation, plan: Plan, fault: Fault) -> None:
        assert plan.reason.strip()
        assert set(plan.evict) <= set(self.allocation)
        assert len(set(plan.evict) & s.used_nodes) <= max_evictions(len(self.allocation)), "more than half"
        assert not set(plan.test_nodes) & self.evicted
        assert (plan.road is Road.TEST) == bool(plan.tests) == bool(plan.test_nodes)
        assert not (s.stopped and plan.road is Road.ALERT_ONLY), "nothing trains, and nothing is done"
        slow = fault.symptom is Symptom.SLOW and not fault.explicit
        assert not (slow and plan.road is Road.STOP), "a slow training makes progress"
        if fault.explicit:
            assert plan.road is not Road.TEST, "evidence names the node"
        if self.honest:
            wrong = set(plan.evict) - {n for f in self.faults for n in f.nodes}
            assert not wrong, f"{wrong} are healthy"
            alone = {n for f in self.faults for n in f.nodes if len(f.nodes) == 1}
            for link in (set(f.nodes) - alone for f in self.faults if len(f.nodes) == 2):
                assert len(link) < 2 or not link <= self.evicted | set(plan.evict), "one node of a link is enough"
        if plan.road not in (Road.STOP, Road.TEST, Road.ALERT_ONLY):
            assert s.fruitless < 2 * s.fruitless_limit
            assert s.fruitless < s.fruitless_limit or plan.evict or plan.code or slow or s.tested, "an attempt too many"
        if not self.options.enabled:
            assert not plan.rung
        seen = [(c.rung, c.tests) for c in self.shadow.rungs]
        assert [(c.rung, c.tests) for c in s.climb.climbed] == seen, "the memory is not what was climbed"
        if plan.rung:
            self.shadow.climb(plan, symptom(s), self.now_s, self.options.tests_per_day)
