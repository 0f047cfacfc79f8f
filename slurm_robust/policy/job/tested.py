"""Decides which nodes are left for what the tests of an incident have found. Pure.

A node that fails is left. If a link fails between two nodes that pass, one of the two nodes is left: neither node is
proven bad, but without one of them the link is not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from slurm_robust.policy.job.situation import Situation


def choices(s: Situation) -> Iterator[dict[str, str]]:
    """Yield sets of nodes to leave, each with its reason: first with one node of each failed link, then without."""
    here = set(s.allocation_nodes)
    failed = {node: why for outcome in s.tested for node, why in outcome.failed.items() if node in here}
    links = {
        (min(pair), max(pair)): why
        for outcome in s.tested
        for pair, why in outcome.links.items()
        if set(pair) <= here - set(failed)
    }
    if links:
        yield {**failed, **_of_links(s, links)}
    if failed:
        yield failed


def _of_links(s: Situation, links: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """Return one node of each failed link, as few nodes as possible.

    Preferred is a spare, then a node with other evidence against it, then the one that comes later by name.
    """
    against = {suspect.node for suspect in s.verdict.suspects} | set(s.apart_nodes)
    left: dict[str, str] = {}
    while open_links := {pair: why for pair, why in links.items() if not set(pair) & set(left)}:
        count = Counter(node for pair in open_links for node in pair)
        # The program cannot run without a node that its command names, and a spare that is left costs it nothing.
        spare = frozenset(s.healthy_spares)
        node = max(count, key=lambda n: (n not in s.excluded_named, count[n], n in spare, n in against, n))
        pair, why = next((pair, why) for pair, why in open_links.items() if node in pair)
        other = pair[0] if pair[1] == node else pair[1]
        left[node] = f"{why}; neither {node} nor {other} is proven bad, and {node} is left out"
    return left
