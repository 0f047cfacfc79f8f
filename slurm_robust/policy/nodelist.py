"""Slurm's folded node lists, `n[1-3,7]`: folded for commands and people, unfolded for decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

_EMPTY = ("", "(null)", "N/A")


def unfold(text: str) -> tuple[str, ...]:
    """The single names in a folded list, sorted; nothing for an empty one.

    Raises:
        ValueError: this is no node list.
    """
    if text in _EMPTY:
        return ()
    try:
        # Groups (`@all`) are ClusterShell's own and never Slurm's: they are not looked up.
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise ValueError(f"not a node list: {text[:80]!r}: {error}") from None


def fold(names: Iterable[str]) -> str:
    """Fold names into one list; an empty text for none."""
    return str(NodeSet.fromlist(sorted(set(names)), resolver=RESOLVER_NOGROUP))


def merge(folded: str, names: Iterable[str]) -> str:
    """A folded list with more names in it."""
    return fold({*unfold(folded), *names})
