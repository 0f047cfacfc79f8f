"""Chooses which nodes replay the training together, and names the node that the failing groups share. Pure.

Tensor and pipeline parallelism stay as they are, and each group of `size` nodes is one replica of the model. In the
first phase a group is a block of neighbours: node x is in group x // size. In the second phase groups are spread: node
x is in group x mod n, of n groups. If size <= n, a block and a spread group share one node at most, so that a single
broken node is the only node that is in a failing group twice. Each later phase separates the suspects: a suspect runs
with nodes that never failed, and is named if this group fails, too. If all groups fail, the program or something shared
is at fault; if no group fails, the replay does not show the fault: in both cases no node is named.

A group with too few nodes (the last block, or after a node left) waits, and is filled with nodes that passed.

The scheme of the first two phases is ByteRobust's (SOSP 2025).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MAX_PHASES = 6
"""Two phases find one broken node; further phases confirm it, and separate several suspects."""
CONFIRMING = 3
"""The first phase after the blocks and the spread groups."""
_SHARED = "the program fails, or something that all nodes share"
_SHOWN = 8
"""Names of nodes in a sentence."""


class ReplayOutcome(str, enum.Enum):
    """The end of the replay of one group."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"
    """The replay could not run: its step did not start, a node left, or nodes were too few. It tells nothing."""


@dataclass(frozen=True)
class ReplayGroup:
    """Nodes that run one replica.

    Attributes:
        phase: 1 for blocks, 2 for spread groups, 3 and more for separated suspects.
        number: Number of the group within its phase, from 0.
        members: The nodes that the group tests.
        fillers: Nodes that passed elsewhere and fill the group up.
    """

    phase: int
    number: int
    members: tuple[str, ...]
    fillers: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that the group runs on."""
        return (*self.members, *self.fillers)


@dataclass(frozen=True)
class ReplayResult:
    """The result of a group.

    Attributes:
        reason: Why the replay failed or did not run, as a sentence.
        absent: Nodes that cannot take part any more.
    """

    group: ReplayGroup
    outcome: ReplayOutcome
    reason: str = ""
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReplayVerdict:
    """The verdict on all groups together.

    Attributes:
        broken: Broken node → the reason.
        undecided: Group of nodes about which the replays leave something open → the reason.
        untested: Node without a result of a replay → the reason.
    """

    broken: dict[str, str] = field(default_factory=dict)
    undecided: dict[tuple[str, ...], str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)


class _Replayed:
    """The results so far for each node and phase."""

    def __init__(self, nodes: Sequence[str], size: int, results: Iterable[ReplayResult]) -> None:
        self.nodes, self.size = tuple(nodes), size
        self.results = tuple(results)
        self.blocks = -(-len(nodes) // size)
        self.absent = {node for result in self.results for node in result.absent}
        # A group that a node left meanwhile is planned again without it.
        self.ended = {(r.group.phase, r.group.number) for r in self.results if not r.absent}
        self.passed: dict[int, set[str]] = {}
        self.failed: dict[int, set[str]] = {}
        for result in self.results:
            kind = {ReplayOutcome.PASSED: self.passed, ReplayOutcome.FAILED: self.failed}.get(result.outcome)
            if kind is not None:
                kind.setdefault(result.group.phase, set()).update(result.group.nodes)
        first_two = self.failed.get(1, set()), self.failed.get(2, set())
        self.suspects = tuple(node for node in self.nodes if node in first_two[0] & first_two[1])
        self.clean = (self.passed.get(1, set()) | self.passed.get(2, set())) - first_two[0] - first_two[1]

    def of(self, phase: int, outcome: ReplayOutcome) -> list[ReplayResult]:
        """Return the results of one phase with this outcome."""
        return [r for r in self.results if r.group.phase == phase and r.outcome is outcome]

    def goes_on_after(self, phase: int) -> bool:
        """Return whether a phase of all nodes leaves something to be found: some groups passed, and some failed."""
        return bool(self.of(phase, ReplayOutcome.FAILED)) and bool(self.of(phase, ReplayOutcome.PASSED))

    def planned(self, phase: int) -> list[ReplayGroup]:
        """Return the groups of phase 1 or 2, before they are filled."""
        blocks = range(self.blocks)
        if phase == 1:
            parts = [self.nodes[k * self.size : (k + 1) * self.size] for k in blocks]
        else:
            parts = [self.nodes[k :: self.blocks] for k in blocks]
        return [
            ReplayGroup(phase, k, tuple(node for node in part if node not in self.absent))
            for k, part in enumerate(parts)
        ]

    def open_suspects(self) -> list[str]:
        """Return suspects that no later phase has cleared or named."""
        later = [r for r in self.results if r.group.phase >= CONFIRMING]
        settled = {node for r in later if r.outcome is ReplayOutcome.PASSED for node in r.group.members}
        settled |= {node for r in later if self.names(r) for node in r.group.members}
        tries = [node for r in later if r.outcome is ReplayOutcome.NOT_RUN for node in r.group.members]
        return [n for n in self.suspects if n not in settled | self.absent and tries.count(n) < 2]

    @staticmethod
    def names(result: ReplayResult) -> bool:
        """Return whether a result by itself shows a broken member: alone among nodes that passed, it failed."""
        alone = result.group.phase >= CONFIRMING and len(result.group.members) == 1
        return alone and result.outcome is ReplayOutcome.FAILED

    def needed(self) -> str:
        """Return a node of every group that passed and of no group that failed: the program may need it."""
        passed = [set(r.group.nodes) for r in self.results if r.outcome is ReplayOutcome.PASSED]
        failed = {n for r in self.results if r.outcome is ReplayOutcome.FAILED for n in r.group.nodes}
        return next(iter(sorted(set.intersection(*passed) - failed)), "") if passed else ""

    def fillers_of_suspects(self) -> list[str]:
        """Return nodes that a suspect may run with.

        Two nodes that fail now and then can make a healthy third node a suspect, so only nodes that never failed are
        used. If only one block and one spread group failed, which a single broken node explains, nodes that passed once
        follow.
        """
        here = [node for node in self.nodes if node not in self.absent and node not in self.suspects]
        clean = [node for node in here if node in self.clean]
        one_node = all(len(self.of(phase, ReplayOutcome.FAILED)) == 1 for phase in (1, 2))
        if not one_node:
            return clean
        ever = self.passed.get(1, set()) | self.passed.get(2, set())
        return clean + [node for node in here if node in ever and node not in self.clean]


def next_groups(
    nodes: Sequence[str], size: int, results: Iterable[ReplayResult], at_once: int = 1 << 16
) -> tuple[ReplayGroup, ...]:
    """Return the groups that run side by side next, which share no node; empty if nothing more can be learnt.

    Args:
        nodes: All nodes, neighbours beside each other.
        size: Nodes of one group.
        results: Everything that has ended so far.
        at_once: How many groups may run at the same time.
    """
    known = _Replayed(nodes, size, results)
    if len(nodes) < size:
        return ()
    for phase in (1, 2):
        groups = _of_all_nodes(known, phase)[:at_once]
        if groups:
            return tuple(groups)
        if not known.goes_on_after(phase):
            return ()
    return tuple(_of_suspects(known)[:at_once])


def _of_all_nodes(known: _Replayed, phase: int) -> list[ReplayGroup]:
    """Return the groups of phase 1 or 2 that can run now; groups with too few nodes wait for nodes that passed."""
    waiting = [g for g in known.planned(phase) if g.members and (phase, g.number) not in known.ended]
    taken: set[str] = set()
    chosen: list[ReplayGroup] = []
    for group in waiting:
        if len(group.members) == known.size:
            chosen.append(group)
            taken.update(group.members)
    able = known.passed.get(1, set()) - known.failed.get(1, set()) - known.failed.get(phase, set()) - known.absent
    for group in sorted(waiting, key=lambda g: -len(g.members)):
        if len(group.members) == known.size or taken & set(group.members):
            continue
        fillers = _fillers(known, group, able - taken, waiting)
        if len(group.members) + len(fillers) == known.size:
            chosen.append(ReplayGroup(phase, group.number, group.members, fillers))
            taken.update(chosen[-1].nodes)
    return chosen


def _fillers(known: _Replayed, group: ReplayGroup, able: set[str], waiting: Sequence[ReplayGroup]) -> tuple[str, ...]:
    """Return as many nodes as the group lacks, or all available ones.

    Preferred are nodes that no other group waits for, and that do not meet a member in the other phase: there a broken
    member would make them suspects as well.
    """
    place = {node: number for number, node in enumerate(known.nodes)}
    columns = {place[node] % known.blocks for node in group.members}
    awaited = {node for other in waiting for node in other.members}
    free = [node for node in known.nodes if node in able and node not in group.members]
    free.sort(key=lambda node: (place[node] % known.blocks in columns if group.phase == 1 else False, node in awaited))
    return tuple(free[: known.size - len(group.members)])


def _of_suspects(known: _Replayed) -> list[ReplayGroup]:
    """Return groups with one suspect each if there are enough nodes for some, else groups with several suspects."""
    suspects = known.open_suspects()
    phase = max((r.group.phase for r in known.results), default=0) + 1
    if not suspects or phase > MAX_PHASES:
        return []
    fillers, size = known.fillers_of_suspects(), known.size
    alone = len(suspects) if size == 1 else len(fillers) // (size - 1)
    count = min((len(suspects) + len(fillers)) // size, len(suspects))
    if alone >= min(len(suspects), 2) or count < 2:
        parts = [[suspect] for suspect in suspects[:alone]]
    else:
        # Every second phase divides the suspects in another way: two broken nodes may be in two failing groups.
        share = -(-len(suspects) // count)
        strided = [suspects[k::count] for k in range(count)]
        parts = strided if phase % 2 else [suspects[k : k + share] for k in range(0, share * count, share)]
    groups = []
    for number, part in enumerate(part for part in parts if part):
        lacking = max(0, size - len(part))
        if lacking <= len(fillers):
            groups.append(ReplayGroup(phase, number, tuple(part[:size]), tuple(fillers[:lacking])))
            del fillers[:lacking]
    return groups


def judge(nodes: Sequence[str], size: int, results: Iterable[ReplayResult]) -> ReplayVerdict:
    """Return the verdict on all results."""
    known = _Replayed(nodes, size, results)
    untested = _untested(known)
    failed = known.of(1, ReplayOutcome.FAILED)
    if not failed:
        return ReplayVerdict(untested=untested)
    for phase in (1, 2):
        ran = known.of(phase, ReplayOutcome.FAILED)
        if ran and not known.of(phase, ReplayOutcome.PASSED):
            everyone = tuple(node for node in known.nodes if any(node in r.group.nodes for r in ran))
            return ReplayVerdict(undecided={everyone: _why_all(phase, ran)}, untested=untested)
    if not known.of(2, ReplayOutcome.FAILED):
        again = known.of(2, ReplayOutcome.PASSED)
        later = "and passed in the other groups of phase 2" if again else "and the second phase was not run"
        reasons = {r.group.nodes: f"failed together, {later}: {r.reason}" for r in failed}
        return ReplayVerdict(undecided=reasons, untested=untested)
    broken = _broken(known)
    if broken and (needed := known.needed()):
        reason = f"every group with {needed} passes, and no other: the program may need that node, by its address, say"
        return ReplayVerdict(undecided={tuple(broken): f"{reason}; {next(iter(broken.values()))}"}, untested=untested)
    return ReplayVerdict(broken, _left_open(known, broken), untested)


def _why_all(phase: int, ran: Sequence[ReplayResult]) -> str:
    if len(ran) == 1:
        return f"the only group of phase {phase} that ran fails, which says nothing about its nodes: {ran[0].reason}"
    return f"all {len(ran)} groups of phase {phase} fail: {_SHARED}; first: {ran[0].reason}"


def _broken(known: _Replayed) -> dict[str, str]:
    """Return the only suspect, unless later results clear it; of several suspects, those that failed alone."""
    later = [r for r in known.results if r.group.phase >= CONFIRMING and r.outcome is not ReplayOutcome.NOT_RUN]
    found: dict[str, str] = {}
    if len(known.suspects) == 1 and not later:
        found[known.suspects[0]] = f"the replay fails {_where(known, known.suspects[0])}"
    for result in later:
        if known.names(result):
            (node,) = result.group.members
            alone = (
                f", and with {_names(result.group.fillers)}, which passed" if result.group.fillers else ", and again"
            )
            found[node] = f"the replay fails {_where(known, node)}{alone}: {result.reason}"
    return found


def _where(known: _Replayed, node: str) -> str:
    first, second = (
        next(r for r in known.of(phase, ReplayOutcome.FAILED) if node in r.group.nodes) for phase in (1, 2)
    )
    others = [_names([n for n in r.group.nodes if n != node]) for r in (first, second)]
    if known.size == 1:
        return f"on {node} in both phases ({first.reason})"
    return f"on {node} with {others[0]} ({first.reason}), and with {others[1]} ({second.reason})"


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more


def _left_open(known: _Replayed, broken: dict[str, str]) -> dict[tuple[str, ...], str]:
    """Return failing groups that no broken node explains: their suspects, or all members if there are none."""
    cleared = {
        node
        for r in known.results
        if r.group.phase >= CONFIRMING and r.outcome is ReplayOutcome.PASSED
        for node in r.group.members
    }
    found: dict[tuple[str, ...], str] = {}
    for result in (r for phase in (1, 2) for r in known.of(phase, ReplayOutcome.FAILED)):
        if set(result.group.nodes) & set(broken):
            continue
        suspects = tuple(n for n in known.suspects if n in result.group.nodes)
        if still := tuple(n for n in suspects if n not in cleared):
            found.setdefault(still, f"one of them fails, and nothing told which: {result.reason}")
        elif suspects:
            found.setdefault(suspects, f"failed in two phases, and passed with nodes that passed: {result.reason}")
        else:
            found.setdefault(result.group.nodes, f"failed together, and passed in other groups: {result.reason}")
    return found


def _untested(known: _Replayed) -> dict[str, str]:
    if len(known.nodes) < known.size:
        short = f"a group of the replay needs {known.size} nodes, and there are {len(known.nodes)}"
        return dict.fromkeys(known.nodes, short)
    ran = {node for r in known.results if r.outcome is not ReplayOutcome.NOT_RUN for node in r.group.nodes}
    reasons = {node: r.reason for r in known.results if r.outcome is ReplayOutcome.NOT_RUN for node in r.group.nodes}
    lacking = "its group has too few nodes, and no nodes that passed were left to fill it"
    return {node: reasons.get(node, lacking) for node in known.nodes if node not in ran}
