"""Chooses who is tested with whom, and names the node or link that the results point at. Pure.

First all nodes meet a neighbour, then their neighbour on the other side: these are the links of a ring over the nodes.
Up to five nodes all meet each other. Members of pairs that failed or were slow meet proven nodes (members of a pair
that passed), each time another one, up to three of them. A node that fails with each is named. Where both members of
a bad pair pass with others, the pair itself meets again: if it fails again, the link between the two is named. What
cannot be told is said to be undecided. A healthy node is named only where three links of its own are broken, or two
where there are no more proven nodes; the sentence then says so.
"""

from __future__ import annotations

import enum
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

MAX_ROUNDS = 8
"""Two in most cases, three or four where a link must be told from a node, five or six where all of five nodes meet."""
_ALL_MEET = 5
"""So many nodes can all meet each other within a few rounds."""
_ENOUGH_PARTNERS = 3
"""Proven nodes that a node must fail with before it is named, where there are so many."""
_LEAST_PARTNERS = 2
"""With fewer, a broken node looks like a broken link."""
_LEAST_FOR_MEDIAN = 3
_TRIES = 2
"""How often a pair is tried before its link is named, and a node whose test could not run."""


class PairOutcome(str, enum.Enum):
    """How the test of one group ended."""

    PASSED = "passed"
    FAILED = "failed"
    SLOW = "slow"
    NOT_RUN = "not_run"
    """It could not run: a member left, a GPU was busy, the time was up. It says nothing about anyone."""


@dataclass(frozen=True)
class GroupResult:
    """The result of one group of two or three nodes.

    Attributes:
        gb_per_s: Bandwidth by operation; empty if none was measured.
        absent: Members that cannot take part any more.
        reason: Why it failed or did not run, as a sentence.
    """

    members: tuple[str, ...]
    outcome: PairOutcome
    reason: str = ""
    gb_per_s: dict[str, float] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()

    @property
    def bad(self) -> bool:
        """Whether it failed or was slow."""
        return self.outcome in (PairOutcome.FAILED, PairOutcome.SLOW)


Round = Sequence[GroupResult]
Group = tuple[str, ...]


@dataclass(frozen=True)
class PairVerdict:
    """What all rounds together say.

    Attributes:
        broken_nodes: Nodes, each with the reason.
        broken_links: Pairs of nodes whose link is broken, each with the reason.
        undecided: Groups of nodes of which one node or link is broken or slow, each with the reason.
        untested: Nodes that no test says anything about, each with the reason.
    """

    broken_nodes: dict[str, str] = field(default_factory=dict)
    broken_links: dict[Group, str] = field(default_factory=dict)
    undecided: dict[Group, str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)


def ordered(nodes: Iterable[str], switches: Sequence[Sequence[str]] = ()) -> tuple[str, ...]:
    """Nodes with those of the same leaf switch beside each other, else in the order given.

    Args:
        nodes: All nodes; one that is there twice counts once.
        switches: The nodes of each leaf switch, in the order of topology.conf; nodes of no switch come last.
    """
    place = {node: number for number, members in reversed(list(enumerate(switches))) for node in members}
    return tuple(sorted(dict.fromkeys(nodes), key=lambda node: place.get(node, len(switches))))


def first_round(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Neighbours, two by two; the last group has three members where the number is odd. One node alone: no group."""
    if len(nodes) < 2:
        return ()
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def judge_bandwidth(results: Round, share: float, earlier: Sequence[Round] = ()) -> tuple[GroupResult, ...]:
    """The same results; groups that passed but were slow are marked.

    Slow is a bandwidth below `share` of the median of the round, in any operation. Groups of as many members count (a
    triple moves its data in another way), and there must be three. A round with fewer is judged by an earlier median.

    Args:
        results: One round.
        share: Part of the median.
        earlier: The rounds before it, the first one first.
    """
    usual: dict[tuple[str, int], float] = {}
    for done in (*earlier, results):
        usual |= _medians(done) if done is results else {k: m for k, m in _medians(done).items() if k not in usual}
    return tuple(_with_speed(result, usual, share) for result in results)


def _medians(results: Round) -> dict[tuple[str, int], float]:
    """The median by operation and size of the group, where there are three groups."""
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
    """What the rounds so far say about each node and pair."""

    def __init__(self, nodes: Sequence[str], rounds: Sequence[Round]) -> None:
        self.nodes = nodes
        self.absent = {node for done in rounds for result in done for node in result.absent}
        self.proven: set[str] = set()
        self.failed_with: dict[str, set[str]] = defaultdict(set)
        self.not_run: dict[str, list[str]] = defaultdict(list)
        self.runs: dict[frozenset[str], list[GroupResult]] = defaultdict(list)
        self.bad: dict[frozenset[str], GroupResult] = {}
        self.together: set[frozenset[str]] = set()
        """Pairs that were in one group, alone or with a third."""
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
        """With how many proven nodes it failed as a pair: of a triple, only its pairs say who was at fault."""
        return sum(frozenset((node, other)) in self.runs for other in self.failed_with[node] & self.proven)

    def seeking(self) -> list[str]:
        """Nodes that no group has proven, and that can still be tested."""
        settled = self.proven | self.broken | self.absent
        return [node for node in self.nodes if node not in settled and len(self.not_run[node]) < _TRIES]

    def doubtful_links(self) -> Iterator[frozenset[str]]:
        """Pairs of proven nodes that were together in a bad group and have no second result yet."""
        for members in self.bad:
            if members & self.absent or not members <= self.proven or self.explained(members):
                continue
            for pair in combinations(sorted(members), 2):
                key = frozenset(pair)
                if self.results_of(key) < _TRIES and all(len(self.not_run[node]) < _TRIES for node in pair):
                    yield key

    def results_of(self, pair: frozenset[str]) -> int:
        """How many groups with both of them have a result; a triple that failed counts for each of its pairs."""
        return sum(len(runs) for members, runs in self.runs.items() if pair <= members)

    def explained(self, members: frozenset[str]) -> bool:
        """True for a triple of which one pair failed again: that pair speaks for itself."""
        return len(members) > 2 and any(pair < members for pair in self.bad)

    def fast_later(self, members: frozenset[str]) -> bool:
        """Return whether a group was only slow, and was not when its pairs met again: a busy machine is no fault."""
        slow = all(run.outcome is not PairOutcome.FAILED for run in self.runs[members])
        tried = all(self.results_of(frozenset(pair)) >= _TRIES for pair in combinations(members, 2))
        return slow and tried and members <= self.proven

    def met(self, node: str, other: str) -> bool:
        """Return whether these two were a pair."""
        return frozenset((node, other)) in self.runs

    def untried(self, pair: Group) -> bool:
        """True for two proven nodes that were in no group together, and can be."""
        both = frozenset(pair)
        return both <= self.proven - self.absent and both not in self.together


def next_round(nodes: Sequence[str], rounds: Sequence[Round]) -> tuple[Group, ...]:
    """The groups of the next round, which share no node; none if nothing more can be learnt.

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
    """The links that are to be tried: those of a ring over the nodes, and of a few nodes all others after them."""
    ring: list[Group] = list(zip(nodes, (*nodes[1:], nodes[0]), strict=True))
    return [*ring, *combinations(nodes, 2)] if len(nodes) <= _ALL_MEET else ring


def _seek(nodes: Sequence[str], known: _Known, used: set[str], add: Callable[..., None]) -> None:
    """Give each node that is not proven a partner: a proven one, else another that is not."""
    free = [node for node in nodes if node in known.proven - known.absent]
    waiting = []
    for node in (node for node in known.seeking() if node not in used):
        partner = _take(node, free, used, known)
        if partner:
            add(partner, node)
        else:
            waiting.append(node)
    # Too few proven nodes: those that are left meet each other in another order, so that some become proven.
    others = waiting.copy()
    for node in waiting:
        if node not in used:
            used.add(node)
            partner = _take(node, others, used, known)
            used.discard(node)
            if partner:
                add(node, partner)


def _take(node: str, candidates: list[str], used: set[str], known: _Known) -> str:
    """The first candidate that is free and has not met this node; empty if there is none."""
    while candidates and candidates[0] in used:
        del candidates[0]
    return next((other for other in candidates if other not in used and not known.met(node, other)), "")


def judge(nodes: Sequence[str], rounds: Sequence[Round]) -> PairVerdict:
    """What the results of all rounds say, after `judge_bandwidth`."""
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
