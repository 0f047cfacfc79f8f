"""Which nodes fail more often than chance explains?

Evidence on a node: a drain of ours that was not reverted, a failed test, an incident whose verdict named it, a job that
Slurm lost to a node (`NODE_FAIL`), a strike. All signals of a node within an hour count as one failure. A failure that
concerns n nodes counts 1/n on each: an incident that named n, a lost job of n nodes, and n nodes (three or more) that
fail within a minute of each other, as after the failure of a switch or a power supply. Claims of one user count at most
twice on a node, since one program may accuse it again and again. A drain whose reason names the leaf switch of several
nodes that failed together does not count.

Test: given all failures of the cluster, those of one node are binomial with its share of the node-days, if it is like
the others. That is exact, and needs no failure rate to be known. A node is a *lemon* if the chance of so many failures
is below `ERROR` / nodes (Bonferroni, stepping down: a lemon that was found leaves the comparison, so that it cannot
hide another one), and its rate is three times that of the other nodes. So with 99.9 % a report does not name a healthy
node. That bound, and not a false discovery rate, decides, because a lemon may be taken out of service and few are
expected. Nodes below a false discovery rate of 10 % (Benjamini-Hochberg) are *watched*: shown, never acted upon.

Exposure: days in jobs by Slurm's accounting if it was read, else days in service; at least a tenth of the window, so
that a node that is rarely used does not become a lemon by one failure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_robust.policy.cluster.leaf_faults import MARK
from slurm_robust.report.facts import Facts
from slurm_robust.report.figures.failures import category_of, is_failure, is_infrastructure, whole_drains

ERROR = 0.001
"""The chance that a report of healthy nodes names any of them."""
WATCHED = 0.1
"""The share of watched nodes that may be healthy."""
MIN_FAILURES = 3
MIN_RATIO = 3.0
SAME_FAILURE_S = 3600.0
TOGETHER_S, TOGETHER_NODES = 60.0, 3
MAX_OF_ONE_USER = 2
MIN_EXPOSURE = 0.1
OWN_STRIKES = "lemon"
"""Incidents of strikes that were given because of this report begin so: they are not evidence for it."""
DAY_S = 86400.0


@dataclass(frozen=True)
class NodeSignal:
    """One sign that something is wrong with a node.

    Attributes:
        weight: 1, or 1/n if the sign concerns n nodes without naming one alone.
        user: The user whose claim the sign rests on; empty if the daemon or Slurm saw the sign.
    """

    node: str
    at_s: float
    kind: str
    text: str
    weight: float = 1.0
    user: str = ""


@dataclass(frozen=True)
class Lemon:
    """A node that fails too often.

    Attributes:
        failures: Counted as above, so it may be a fraction.
        expected: The failures that a node like the others would have had in its days.
        chance: The chance of so many failures on a node that is like the others.
        kinds: Signals by their kind.
        why: A sentence.
    """

    node: str
    failures: float
    expected: float
    node_days: float
    ratio: float
    chance: float
    kinds: Mapping[str, int]
    last_at_s: float
    why: str


@dataclass(frozen=True)
class LemonReport:
    """The result of the search among all nodes.

    Attributes:
        level: A node whose chance is below this level is a lemon.
        sentence: The result as a sentence, or why there is no result.
    """

    nodes: int
    failures: float
    node_days: float
    level: float
    lemons: tuple[Lemon, ...]
    watched: tuple[Lemon, ...]
    sentence: str


@dataclass
class _Record:
    node: str
    exposure: float
    weight: float = 0.0
    signals: list[NodeSignal] = field(default_factory=list)

    @property
    def count(self) -> int:
        return math.floor(self.weight + 1e-9)


def find_lemons(facts: Facts, nodes: Sequence[str] = ()) -> LemonReport:
    """Lemons and watched nodes of the window; `nodes` adds nodes of which the facts have no row."""
    exposures = exposures_of(facts, nodes)
    records = {node: _Record(node, days) for node, days in exposures.items()}
    for failure in failures_of(signals_of(facts)):
        record = records.get(failure[0].node)
        if record is not None:
            record.weight += max(signal.weight for signal in failure)
            record.signals += failure
    level = ERROR / max(1, len(records))
    found, rest = _step_down(list(records.values()))
    watched = _below_discovery_rate(rest, len(records))
    total = sum(record.weight for record in records.values())
    sentence = _sentence(found, watched, len(records), total)
    return LemonReport(len(records), total, sum(exposures.values()), level, found, watched, sentence)


def _step_down(records: list[_Record]) -> tuple[tuple[Lemon, ...], list[tuple[_Record, Lemon]]]:
    """Name the worst node as long as it is a lemon, each time without those named before; and the others."""
    found: list[Lemon] = []
    while True:
        tested = _tested(records)
        worst = min(tested, key=lambda pair: (pair[1].chance, pair[1].node), default=None)
        if worst is None or worst[1].chance > ERROR / len(records) or worst[1].ratio < MIN_RATIO:
            return tuple(found), tested
        found.append(worst[1])
        records = [record for record in records if record is not worst[0]]


def _tested(records: Sequence[_Record]) -> list[tuple[_Record, Lemon]]:
    """Return every node with enough failures, compared with all nodes."""
    days = sum(record.exposure for record in records)
    total = math.ceil(sum(record.weight for record in records) - 1e-9)
    pairs = []
    for record in records:
        others_days = days - record.exposure
        if record.count < MIN_FAILURES or others_days <= 0:
            continue
        others = max(0.0, total - record.weight)
        expected = others / others_days * record.exposure
        chance = binomial_tail(record.count, total, record.exposure / days)
        ratio = record.weight / expected if expected else math.inf
        pairs.append((record, _lemon(record, expected, ratio, chance)))
    return pairs


def _lemon(record: _Record, expected: float, ratio: float, chance: float) -> Lemon:
    kinds = Counter(signal.kind for signal in record.signals)
    what = ", ".join(f"{n} × {kind}" for kind, n in kinds.most_common())
    times = f"{ratio:.1f} times as many as the others" if math.isfinite(ratio) else "and the others none"
    why = f"{record.weight:.3g} failures in {record.exposure:.3g} node-days, {times} ({what}); by chance: {chance:.1e}"
    last_s = max(signal.at_s for signal in record.signals)
    return Lemon(
        *(record.node, record.weight, expected, record.exposure, ratio, chance, dict(kinds.most_common()), last_s, why)
    )


def _below_discovery_rate(tested: Sequence[tuple[_Record, Lemon]], nodes: int) -> tuple[Lemon, ...]:
    """Benjamini and Hochberg's procedure; nodes that were not tested count as tested with chance 1."""
    rows = sorted((lemon for _, lemon in tested), key=lambda lemon: lemon.chance)
    last = max((n for n, row in enumerate(rows, 1) if row.chance <= WATCHED * n / nodes), default=0)
    return tuple(row for row in rows[:last] if row.ratio >= MIN_RATIO)


def _sentence(found: Sequence[Lemon], watched: Sequence[Lemon], nodes: int, total: float) -> str:
    if not nodes:
        return "No node is known, so none can be compared."
    if total < MIN_FAILURES:
        failures = "failure" if total == 1 else "failures"
        return f"{nodes} nodes had {total:.3g} {failures} in all: too few to compare them."
    names = ", ".join(lemon.node for lemon in found[:8]) + (", …" if len(found) > 8 else "")
    also = f" {len(watched)} more should be watched." if watched else ""
    if found:
        verb = "fails" if len(found) == 1 else "fail"
        return f"{len(found)} of {nodes} nodes {verb} more often than chance explains: {names}.{also}"
    return f"None of {nodes} nodes fails more often than chance explains.{also}"


def exposures_of(facts: Facts, nodes: Sequence[str] = ()) -> dict[str, float]:
    """Node-days of each node that is known by name, and of as many more as the cluster is known to have had."""
    window_s = max(0.0, min(facts.to_s, facts.read_at_s) - facts.from_s)
    if not window_s:
        return {}
    out_s, busy_s = _out_s(facts), defaultdict[str, float](float)
    for job in facts.jobs:
        if job.started_at_s is not None and job.nodes:
            end_s = job.ended_at_s if job.ended_at_s is not None else facts.read_at_s
            seconds = max(0.0, min(end_s, facts.to_s) - max(job.started_at_s, facts.from_s))
            for node in job.nodes:
                busy_s[node] += seconds
    names = {*nodes, *busy_s, *_named(facts)}
    counted = _cluster_nodes(facts)
    names |= {f"(unnamed {number})" for number in range(len(names), counted)}
    least_s = window_s * MIN_EXPOSURE
    return {
        name: max(least_s, min(window_s, busy_s[name]) if facts.jobs else window_s - out_s.get(name, 0.0)) / DAY_S
        for name in sorted(names)
    }


def _named(facts: Facts) -> Iterator[str]:
    yield from (drain.node for drain in facts.drains)
    yield from (strike.node for strike in facts.strikes)
    yield from (repair.node for repair in facts.repairs)
    for attempt in facts.attempts:
        yield from attempt.nodes
    for pool in facts.pools:
        yield from pool.nodes
    for incident in facts.incidents:
        yield from incident.evict or incident.suspects


def _out_s(facts: Facts) -> dict[str, float]:
    out: dict[str, float] = defaultdict(float)
    for drain in facts.drains:
        end_s = drain.ended_at_s if drain.ended_at_s is not None else facts.to_s
        out[drain.node] += max(0.0, min(end_s, facts.to_s) - max(drain.at_s, facts.from_s))
    return out


def _cluster_nodes(facts: Facts) -> int:
    """Return the most nodes that the cluster had, all classes together."""
    newest: dict[str, int] = {}
    most = 0
    for size in sorted(facts.sizes, key=lambda row: row.at_s):
        newest[size.gres] = size.nodes
        most = max(most, sum(newest.values()))
    return most


def signals_of(facts: Facts) -> list[NodeSignal]:
    """Return all signs on all nodes within the window, in order of time; `failures_of` tells storms apart."""
    found = [signal for signal in _signals(facts) if facts.from_s <= signal.at_s < facts.to_s]
    return sorted(found, key=lambda signal: (signal.at_s, signal.node))


def _signals(facts: Facts) -> Iterator[NodeSignal]:
    for drain in whole_drains(facts.drains):
        if not drain.reverted:
            xid = drain.xid
            yield NodeSignal(drain.node, drain.at_s, f"XID {xid}" if xid is not None else "drain", drain.reason)
    for strike in facts.strikes:
        if not strike.incident.startswith(OWN_STRIKES):
            kind = "failed test" if strike.failed_test else "strike"
            user = "" if strike.failed_test else strike.user or "?"
            yield NodeSignal(strike.node, strike.at_s, kind, strike.failed_test or strike.why, user=user)
    for incident in facts.incidents:
        named = incident.evict or incident.suspects
        if named and is_failure(incident) and is_infrastructure(incident):
            user = "" if incident.kind in ("node_lost", "node_fault") else incident.user
            what = category_of(incident)
            for node in named:
                yield NodeSignal(node, incident.opened_at_s, "incident", what, 1 / len(named), user)
    for job in facts.jobs:
        if job.state == "NODE_FAIL" and job.ended_at_s is not None:
            for node in job.nodes:
                yield NodeSignal(node, job.ended_at_s, "lost job", f"job {job.job}", 1 / len(job.nodes))


def failures_of(signals: Sequence[NodeSignal]) -> list[list[NodeSignal]]:
    """Signals joined to failures: those on a node within an hour; storms weighed down, one user's claims bounded."""
    failures: list[list[NodeSignal]] = []
    open_ones: dict[str, list[NodeSignal]] = {}
    claims: Counter[tuple[str, str]] = Counter()
    for signal in sorted(signals, key=lambda s: s.at_s):
        last = open_ones.get(signal.node)
        if last is not None and signal.at_s - last[-1].at_s <= SAME_FAILURE_S:
            last.append(signal)
        else:
            open_ones[signal.node] = [signal]
            failures.append(open_ones[signal.node])
    kept = []
    for failure in failures:
        if any(MARK in signal.text for signal in failure):
            continue
        users = {signal.user for signal in failure}
        if "" not in users and len(users) == 1:
            claim = (failure[0].node, users.pop())
            claims[claim] += 1
            if claims[claim] > MAX_OF_ONE_USER:
                continue
        kept.append(failure)
    return _storms_weighed(kept)


def _storms_weighed(failures: list[list[NodeSignal]]) -> list[list[NodeSignal]]:
    """Weigh each failure of a storm 1/n: three or more nodes, each within a minute of the one before, share a cause."""
    out: list[list[NodeSignal]] = []
    group: list[list[NodeSignal]] = []

    def close() -> None:
        nodes = len({failure[0].node for failure in group})
        most = 1 / nodes if nodes >= TOGETHER_NODES else 1.0
        out.extend([replace(s, weight=min(s.weight, most)) for s in failure] for failure in group)
        group.clear()

    for failure in sorted(failures, key=lambda f: f[0].at_s):
        if group and failure[0].at_s - group[-1][0].at_s > TOGETHER_S:
            close()
        group.append(failure)
    close()
    return out


def binomial_tail(count: int, of: int, share: float) -> float:
    """Return the chance of `count` or more of `of` events that each come with this probability."""
    if count <= 0:
        return 1.0
    if count > of or share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    if count <= of * share:
        # Terms are summed away from the most likely number: beyond it the first one may be too small for a float.
        return 1.0 - binomial_tail(of - count + 1, of, 1 - share)
    choose = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    term = math.exp(choose + count * math.log(share) + (of - count) * math.log1p(-share))
    total, odds = 0.0, share / (1 - share)
    for number in range(count, of + 1):
        total += term
        term *= (of - number) / (number + 1) * odds
        if number > of * share and term < total * 1e-16:
            break
    return min(1.0, total)
