"""Chooses the lemon that is given to quarantine. Reads what a report names, and trusts none of it. Pure.

A lemon has to be a node that Slurm has now, in service and free of jobs, in no seat, quarantine or pair test, and not
one that was given to quarantine as a lemon within the strike window: the same failures would name it every day.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec

from slurm_robust.core.text import printable, shortened
from slurm_robust.policy.cluster.node_states import idle
from slurm_robust.slurm.client import Node

MAX_CHANCE = 0.001
MIN_FAILURES = 3.0
MAX_WHY_CHARS = 300
MAX_NAMED = 100


class NamedLemon(msgspec.Struct, frozen=True):
    """A node that a report names, and why."""

    node: str
    why: str
    failures: float
    chance: float


class LemonAnswer(msgspec.Struct, frozen=True):
    """The part of `srobust report lemons --json` that is read."""

    lemons: tuple[NamedLemon, ...]


def named_lemons(answer: bytes) -> tuple[NamedLemon, ...]:
    """Return the lemons of a report, the surest first.

    Raises:
        ValueError: the answer is not a report of lemons.
    """
    try:
        found = msgspec.json.decode(answer, type=LemonAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a report of lemons: {error}") from None
    kept = [
        NamedLemon(lemon.node, _plain(lemon.why), lemon.failures, lemon.chance)
        for lemon in found.lemons
        if 0 <= lemon.chance <= MAX_CHANCE and math.isfinite(lemon.failures) and lemon.failures >= MIN_FAILURES
    ]
    return tuple(sorted(kept, key=lambda lemon: (lemon.chance, lemon.node))[:MAX_NAMED])


def choose(
    lemons: Collection[NamedLemon], nodes: Mapping[str, Node], taken: Collection[str], given: Collection[str]
) -> NamedLemon | None:
    """Return the surest lemon that may be given to quarantine now; None if none may.

    Args:
        lemons: The lemons, the surest first.
        nodes: The nodes as Slurm shows them.
        taken: Nodes with a job, in a seat, in quarantine or under test.
        given: Nodes that were given within the strike window.
    """
    for lemon in lemons:
        node = nodes.get(lemon.node)
        if node is not None and idle(node) and lemon.node not in taken and lemon.node not in given:
            return lemon
    return None


def _plain(text: str) -> str:
    return shortened(printable(text), MAX_WHY_CHARS)
