"""Chooses which nodes are tested together, and names the node or link that the results point at. Pure.

First all nodes meet a neighbour, then their neighbour on the other side: these are the links of a ring over the nodes.
Up to five nodes all meet each other. Members of pairs that failed or were slow meet up to three different proven nodes
(members of a pair that passed). A node that fails with all of them is named. If both members of a bad pair pass with
other nodes, the pair itself meets again: if the pair fails again, the link between the two is named. All other cases
are reported as undecided. A healthy node is only named if three links of its own are broken, or two if there are no
more proven nodes; the sentence then says so.
"""

from __future__ import annotations

import enum
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

MAX_ROUNDS = 8
"""Mostly two; three or four to tell a link from a node, five or six if all of five nodes meet."""
_ALL_MEET = 5
"""Up to so many nodes can all meet each other within a few rounds."""
_ENOUGH_PARTNERS = 3
"""A node must fail with so many proven nodes before it is named, if there are so many."""
_LEAST_PARTNERS = 2
"""With fewer, a broken node looks like a broken link."""
_LEAST_FOR_MEDIAN = 3
_TRIES = 2
"""How often a pair is tried before its link is named, and a node if its test could not run."""


class PairOutcome(str, enum.Enum):
    """The end of the test of one group."""

    PASSED = "passed"
    FAILED = "failed"
    SLOW = "slow"
    NOT_RUN = "not_run"
    """The test could not run: a member left, a GPU was busy, the time was up. It does not tell anything about nodes."""


@dataclass(frozen=True)
class GroupResult:
    """The result of one group of two or three nodes.

    Attributes:
        gb_per_s: Bandwidth by operation; empty if none was measured.
        absent: Members that cannot take part any more.
        reason: Why the test failed or did not run, as a sentence.
    """

    members: tuple[str, ...]
    outcome: PairOutcome
    reason: str = ""
    gb_per_s: dict[str, float] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    @property
    def bad(self) -> bool:
        """Whether the group failed or was slow."""
        return self.outcome in (PairOutcome.FAILED, PairOutcome.SLOW)


Round = Sequence[GroupResult]
Group = tuple[str, ...]


@dataclass(frozen=True)
class PairVerdict:
    """The verdict on all rounds together.

    Attributes:
        broken_nodes: Broken node → the reason.
        broken_links: Pair of nodes whose link is broken → the reason.
        undecided: Group of nodes in which one node or link is broken or slow → the reason.
        untested: Node without a test result → the reason.
    """

    broken_nodes: dict[str, str] = field(default_factory=dict)
    broken_links: dict[Group, str] = field(default_factory=dict)
    undecided: dict[Group, str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)


def ordered(nodes: Iterable[str], switches: Sequence[Sequence[str]] = ()) -> tuple[str, ...]:
    """Return the nodes with those of one leaf switch beside each other, otherwise in the order given.

    Args:
        nodes: All nodes; a node that is listed twice counts once.
        switches: The nodes of each leaf switch, in the order of topology.conf; nodes without a switch come last.
    """
    place = {node: number for number, members in reversed(list(enumerate(switches))) for node in members}
    return tuple(sorted(dict.fromkeys(nodes), key=lambda node: place.get(node, len(switches))))


def first_round(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Return neighbours, two by two; the last group has three members if the number is odd. One node: no group."""
    if len(nodes) < 2:
        return ()
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def judge_bandwidth(results: Round, share: float, earlier: Sequence[Round] = ()) -> tuple[GroupResult, ...]:
    """Return the results, in which groups that passed but were slow are marked.

    A bandwidth below `share` of the median of the round, in any operation, is slow. The median is over groups of equal
    size (a triple moves its data in another way), of which there must be three. If a round has fewer, an earlier median
    is used.

    Args:
        results: The results of one round.
        share: Share of the median.
        earlier: The earlier rounds, the first one first.
    """
    usual: dict[tuple[str, int], float] = {}
    for done in (*earlier, results):
        usual |= _medians(done) if done is results else {k: m for k, m in _medians(done).items() if k not in usual}
    return tuple(_with_speed(result, usual, share) for result in results)


def _medians(results: Round) -> dict[tuple[str, int], float]:
    """Return the median by operation and size of the group, if there are three groups."""
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    for result in results:
        for operation, rate in result.gb_per_s.items():
            rates[operation, len(result.members)].append(rate)
    return {key: statistics.median(found) for key, found in rates.items() if len(found) >= _LEAST_FOR_MEDIAN}


def _with_speed(result: GroupResult, usual: dict[tuple[str, int], float], share: float) -> GroupResult:
    if result.outcome is not PairOutcome.PASSED:
        return result
    for operation, rate in result.gb_per_s.items():
        median = usual.get((operation, len(result.members)), 0.0)
        if rate < share * median:
            reason = f"{operation} at {rate:.3g} GB/s, the median of the round is {median:.3g} GB/s"
            return GroupResult(result.members, PairOutcome.SLOW, reason, result.gb_per_s, result.absent)
    return result


class _Known:
    """The results of all rounds so far for each node and pair."""

    def __init__(self, nodes: Sequence[str], rounds: Sequence[Round]) -> None:
        self.nodes = nodes
        self.absent = {node for done in rounds for result in done for node in result.absent}
        self.proven: set[str] = set()
        self.failed_with: dict[str, set[str]] = defaultdict(set)
        self.not_run: dict[str, list[str]] = defaultdict(list)
        self.runs: dict[frozenset[str], list[GroupResult]] = defaultdict(list)
        self.bad: dict[frozenset[str], GroupResult] = {}
        self.together: set[frozenset[str]] = set()
        """Pairs that were in one group, alone or with a third node."""
        for done in rounds:
            for result in done:
                self._add(result)
        there = len(self.proven - self.absent)
        needed = max(_LEAST_PARTNERS, min(_ENOUGH_PARTNERS, there))
        self.broken = {node for node in nodes if node not in self.proven and self._failing_partners(node) >= needed}

    def _add(self, result: GroupResult) -> None:
        members = frozenset(result.members)
        if result.outcome is PairOutcome.NOT_RUN:
            for node in members:
                self.not_run[node].append(result.reason)
            return
        self.runs[members].append(result)
        self.together.update(map(frozenset, combinations(result.members, 2)))
        if result.bad:
            self.bad.setdefault(members, result)
            for node in members:
                self.failed_with[node] |= members - {node}
        else:
            self.proven |= members

    def _failing_partners(self, node: str) -> int:
        """Return with how many proven nodes it failed as a pair; a triple does not tell which node was at fault."""
        return sum(frozenset((node, other)) in self.runs for other in self.failed_with[node] & self.proven)

    def seeking(self) -> list[str]:
        """Return nodes that no group has proven, and that can still be tested."""
        settled = self.proven | self.broken | self.absent
        return [node for node in self.nodes if node not in settled and len(self.not_run[node]) < _TRIES]

    def doubtful_links(self) -> Iterator[frozenset[str]]:
        """Yield pairs of proven nodes that were together in a bad group and have no second result yet."""
        for members in self.bad:
            if members & self.absent or not members <= self.proven or self.explained(members):
                continue
            for pair in combinations(sorted(members), 2):
                key = frozenset(pair)
                if self.results_of(key) < _TRIES and all(len(self.not_run[node]) < _TRIES for node in pair):
                    yield key

    def results_of(self, pair: frozenset[str]) -> int:
        """Return how many groups with both nodes have a result; a triple that failed counts for each of its pairs."""
        return sum(len(runs) for members, runs in self.runs.items() if pair <= members)

    def explained(self, members: frozenset[str]) -> bool:
        """Return whether it is a triple of which one pair failed again: that pair is the explanation."""
        return len(members) > 2 and any(pair < members for pair in self.bad)

    def fast_later(self, members: frozenset[str]) -> bool:
        """Return whether a group was only slow, and its pairs were fast later: a busy machine is not a fault."""
        slow = all(run.outcome is not PairOutcome.FAILED for run in self.runs[members])
        tried = all(self.results_of(frozenset(pair)) >= _TRIES for pair in combinations(members, 2))
        return slow and tried and members <= self.proven

    def met(self, node: str, other: str) -> bool:
        """Return whether these two were a pair."""
        return frozenset((node, other)) in self.runs

    def untried(self, pair: Group) -> bool:
        """Return whether these are two proven nodes that were in no group together, but can be."""
        both = frozenset(pair)
        return both <= self.proven - self.absent and both not in self.together


def next_round(nodes: Sequence[str], rounds: Sequence[Round]) -> tuple[Group, ...]:
    """Return the groups of the next round, which share no node; empty if nothing more can be learnt.

    Args:
        nodes: All nodes, in the order of `ordered`.
        rounds: The results so far, after `judge_bandwidth`.
    """
    if not rounds:
        return first_round(nodes)
    if len(rounds) >= MAX_ROUNDS:
        return ()
    known = _Known(nodes, rounds)
    groups: list[Group] = []
    used: set[str] = set()

    def add(*members: str) -> None:
        groups.append(members)
        used.update(members)

    for link in known.doubtful_links():
        if not link & used:
            add(*sorted(link))
    _seek(nodes, known, used, add)
    for pair in _links(nodes):
        if not set(pair) & used and known.untried(pair):
            add(*pair)
    return tuple(groups)


def _links(nodes: Sequence[str]) -> list[Group]:
    """Return the links to try: those of a ring over the nodes and, if there are few nodes, all others after them."""
    ring: list[Group] = list(zip(nodes, (*nodes[1:], nodes[0]), strict=True))
    return [*ring, *combinations(nodes, 2)] if len(nodes) <= _ALL_MEET else ring


def _seek(nodes: Sequence[str], known: _Known, used: set[str], add: Callable[..., None]) -> None:
    """Give each node that is not proven a partner: a proven node, else another node that is not proven."""
    free = [node for node in nodes if node in known.proven - known.absent]
    waiting = []
    for node in (node for node in known.seeking() if node not in used):
        partner = _take(node, free, used, known)
        if partner:
            add(partner, node)
        else:
            waiting.append(node)
    # Too few nodes are proven: the other nodes meet each other in another order, so that some become proven.
    others = waiting.copy()
    for node in waiting:
        if node not in used:
            used.add(node)
            partner = _take(node, others, used, known)
            used.discard(node)
            if partner:
                add(node, partner)


def _take(node: str, candidates: list[str], used: set[str], known: _Known) -> str:
    """Return the first candidate that is free and has not met this node; empty if there is none."""
    while candidates and candidates[0] in used:
        del candidates[0]
    return next((other for other in candidates if other not in used and not known.met(node, other)), "")


def judge(nodes: Sequence[str], rounds: Sequence[Round]) -> PairVerdict:
    """Return the verdict on the results of all rounds, after `judge_bandwidth`."""
    known = _Known(nodes, rounds)
    broken = {node: _why_broken(node, known) for node in nodes if node in known.broken}
    links: dict[Group, str] = {}
    undecided: dict[Group, str] = {}
    for members, result in known.bad.items():
        if members & known.broken:
            continue
        group = tuple(node for node in nodes if node in members)
        both_proven = len(group) == 2 and members <= known.proven
        if both_proven and known.results_of(members) > 1 and all(run.bad for run in known.runs[members]):
            both = "fails with the other, and passes with a third"
            links[group] = f"the link between {group[0]} and {group[1]}: {result.reason}; each {both}"
        elif not known.explained(members) and not known.fast_later(members):
            undecided[group] = _why_undecided(group, result, known)
    seen = {node for members in known.runs for node in members}
    untested = {node: _why_untested(node, known) for node in nodes if node not in seen}
    return PairVerdict(broken, links, undecided, untested)


def _why_broken(node: str, known: _Known) -> str:
    met = [other for other in known.nodes if other in known.failed_with[node] & known.proven]
    first = next(result for members, result in known.bad.items() if node in members)
    or_links = "" if len(met) >= _ENOUGH_PARTNERS else " (or its links to both: no third node could be met)"
    return f"fails with {', '.join(met)}, each of which passes with another node{or_links}: {first.reason}"


def _why_undecided(group: Group, result: GroupResult, known: _Known) -> str:
    names = ", ".join(group)
    if result.members and set(group) <= known.proven:
        if len(group) > 2 or known.results_of(frozenset(group)) > 1:
            return f"{names} failed together once and passed later: {result.reason}"
        return f"{names} failed together and pass with others; they were not tried again: {result.reason}"
    if not known.proven:
        everyone = len({node for members in known.bad for node in members}) == len(known.nodes)
        hint = "; all pairs failed, which points at the set-up (interface, firewall, library)" if everyone else ""
        more = hint if len(known.nodes) > 2 else "; two nodes cannot tell which"
        return f"one of {names}, or the link between them: {result.reason}{more}"
    return f"one of {names}, or the link between them; nothing told which: {result.reason}"


def _why_untested(node: str, known: _Known) -> str:
    reasons = known.not_run[node]
    if reasons:
        return reasons[-1]
    return "a pair needs two nodes" if len(known.nodes) < 2 else "no partner was left"
