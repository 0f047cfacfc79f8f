"""Decides which rungs of the ladder are open. Pure.

`TABLE` is the ladder: the rungs for each symptom. One climb goes on over restarts and requeues until the training has
settled (`LadderMemory.at`). All its bounds are here:

* each set of tests is made once, and once before that on the nodes that stand apart; the same again, the older code,
  the replay, the requeue, and leaving a group: once each
* no requeue of a training that makes new steps, if another climb has led to a requeue within 24 hours
* no more than `tests_per_day` rungs with tests or a replay within 24 hours
* never down: no tests for a symptom for which a higher rung was climbed, and no rung below the highest climbed one
* no further attempt if the limit of attempts without a new step is reached; tests and a replay cost no attempt
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_robust.core.model import TestName
from slurm_robust.policy.job import code_versions
from slurm_robust.policy.job.eviction import leave, max_evictions
from slurm_robust.policy.job.ladder import LadderMemory, Rung, Symptom
from slurm_robust.policy.job.situation import Situation

_MIN_PARTNERS = 3
"""A node fails the pairs test once it has failed with three proven nodes."""
_MIN_PAIRS = 4
"""With fewer nodes, pairs would stay undecided: spares of the allocation are tested with them."""


@dataclass(frozen=True)
class LadderRow:
    """The tests and rungs for one symptom.

    Attributes:
        tests: Sets of tests, one after the other, on all nodes of the training.
        apart_first: The first set is made on the nodes that stand apart before.
        then: The rungs above the tests, the lowest first.
    """

    tests: tuple[tuple[TestName, ...], ...]
    apart_first: bool = False
    then: tuple[Rung, ...] = (Rung.REATTEMPT, Rung.OTHER_CODE, Rung.REPLAY, Rung.REQUEUE)


TABLE: Mapping[Symptom, LadderRow] = {
    Symptom.HANG: LadderRow(((TestName.IN_NODE, TestName.PAIRS),), apart_first=True),
    Symptom.CRASH: LadderRow(((TestName.IN_NODE, TestName.PAIRS),)),
    # A requeue without a named node does not help a bad loss: training goes back, as often as the site allows.
    Symptom.BAD_LOSS: LadderRow(
        ((TestName.ALIGNMENT,), (TestName.IN_NODE,)), then=(Rung.REATTEMPT, Rung.OTHER_CODE, Rung.REPLAY)
    ),
    # A slow training makes progress: it is never stopped, and gets no other code.
    Symptom.SLOW: LadderRow(((TestName.PAIRS,),), then=(Rung.REATTEMPT,)),
}
_ORDER = (Rung.REATTEMPT, Rung.OTHER_CODE, Rung.REPLAY, Rung.REQUEUE)
"""The rungs above the tests, from the lowest."""


@dataclass(frozen=True)
class OpenRung:
    """A rung that is open, with its tests and the nodes that they run on."""

    rung: Rung
    tests: tuple[TestName, ...] = ()
    nodes: tuple[str, ...] = ()


def open_now(s: Situation, which: Symptom, memory: LadderMemory, *, attempts: bool) -> Iterator[OpenRung]:
    """Yield the rungs that are open for a symptom, the next one first; without `attempts` only those that cost none."""
    row = TABLE[which]
    if attempts and row.apart_first and not memory.climbed and group_to_leave(s):
        yield OpenRung(Rung.LEAVE_GROUP)
    if attempts or which is not Symptom.SLOW:
        yield from _open_tests(s, which, memory)
    for rung in row.then:
        if higher(rung, memory) and (attempts or rung is Rung.REPLAY) and _possible(s, rung, memory):
            replay = rung is Rung.REPLAY
            yield OpenRung(rung, (TestName.REPLAY,) if replay else (), trained_on(s) if replay else ())


def higher(rung: Rung, memory: LadderMemory) -> bool:
    """Return whether no rung as high as this one, or higher, was climbed."""
    return all(_ORDER.index(c.rung) < _ORDER.index(rung) for c in memory.climbed if c.rung in _ORDER)


def _possible(s: Situation, rung: Rung, memory: LadderMemory) -> bool:
    if rung is Rung.OTHER_CODE:
        return code_versions.unexplained(s.code, s.failure) is not None
    if rung is Rung.REPLAY:
        made = any(TestName.REPLAY in outcome.tests for outcome in s.tested)
        return s.ladder_options.replay_possible and len(s.used_nodes) > 1 and not made and _may_test(s, memory)
    if rung is Rung.REQUEUE:
        if s.fruitless == 0 and memory.requeued_within_day(s.now_s):
            return False  # it trains between its failures: each requeue would cost it more than a restart
        return s.job.requeueable and not any(c.requeued and c.rung is not Rung.LEAVE_GROUP for c in memory.climbed)
    return True


def _may_test(s: Situation, memory: LadderMemory) -> bool:
    return memory.tests_within_day(s.now_s) < s.ladder_options.tests_per_day


def _open_tests(s: Situation, which: Symptom, memory: LadderMemory) -> Iterator[OpenRung]:
    row = TABLE[which]
    over = [c for c in memory.climbed if c.rung in _ORDER and (c.symptom is which or which is Symptom.SLOW)]
    if over or not _may_test(s, memory):
        return
    done = {test for c in memory.climbed if c.rung is Rung.TEST for test in c.tests}
    done.update(test for outcome in s.tested for test in outcome.tests if set(outcome.nodes) >= set(trained_on(s)))
    for number, wanted in enumerate(row.tests):
        tests = tuple(t for t in wanted if t in s.ladder_options.tests and t not in done)
        everywhere = _tested_on(s, tests)
        if len(everywhere) < 2:
            tests = tuple(t for t in tests if t is not TestName.PAIRS)
        if not tests:
            continue
        again = bool(s.tested) or any(c.rung is Rung.TEST_APART for c in memory.climbed)
        some = _with_partners(s, everywhere) if row.apart_first and number == 0 and not again else ()
        if some:
            yield OpenRung(Rung.TEST_APART, tests, some)
        yield OpenRung(Rung.TEST, tests, everywhere)


def trained_on(s: Situation) -> tuple[str, ...]:
    """Return the nodes of the attempt, in the order of the allocation."""
    return tuple(n for n in s.allocation_nodes if n in s.used_nodes)


def _tested_on(s: Situation, tests: tuple[TestName, ...]) -> tuple[str, ...]:
    used = trained_on(s)
    if TestName.PAIRS not in tests or len(used) >= _MIN_PAIRS:
        return used
    spares = tuple(n for n in s.allocation_nodes if n in s.healthy_spares and n not in s.ladder.left)
    return used + spares[: _MIN_PAIRS - len(used)]


def standing_apart(s: Situation) -> tuple[str, ...]:
    """Return the nodes that the stacks speak against, without naming them for certain."""
    nodes = {suspect.node for suspect in s.verdict.suspects} or set(s.apart_nodes)
    return tuple(n for n in trained_on(s) if n in nodes)


def _with_partners(s: Situation, everywhere: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes that stand apart, with as many others, at least three; empty if that would be all nodes."""
    apart = standing_apart(s)
    others = [n for n in everywhere if n not in apart][: max(len(apart), _MIN_PARTNERS)]
    some = tuple(n for n in everywhere if n in apart or n in others)
    return some if apart and len(some) < len(everywhere) else ()


def group_to_leave(s: Situation) -> tuple[str, ...]:
    """Return the whole group that stands apart, if the site wants it to be left, and other nodes can take over."""
    here = tuple(n for n in s.allocation_nodes if n in s.apart_group)
    needed = len(s.used_nodes.intersection(here))
    spares = set(s.healthy_spares) - set(here) - set(s.ladder.left)
    enough = max(len(spares), s.standby_nodes) >= needed
    few = 0 < needed <= max_evictions(len(s.allocation_nodes))
    if not (s.ladder_options.over_evict and few and enough) or s.tested:
        return ()
    return here if leave(s, dict.fromkeys(here, "")).evict else ()
