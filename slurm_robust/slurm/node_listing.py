"""Parses the cheap listing of nodes, by `sinfo`: what changes of them, each line with all nodes that are alike."""

from __future__ import annotations

from collections.abc import MutableMapping

from slurm_robust.slurm.client import NodeLine, NodeListing
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.parse import gres_count
from slurm_robust.slurm.values import epoch_s, expand, listed_state, node_state, plain

FIELDS = ("StateComplete", "Reason", "User", "Timestamp", "Comment", "Extra", "GresUsed", "NodeList")
"""The fields of `sinfo -O`, in this order."""


def parse(text: str, separator: str, last: MutableMapping[str, frozenset[str]] | None = None) -> NodeListing:
    """Read `sinfo -h -O` of `FIELDS`, each followed by `separator`.

    Most lines name the same nodes as a moment ago: `last` has the names of the last listing, by the text of each line's
    list, and is left with this one's. No more is kept, since on a busy site the long lists are new in each listing.

    Raises:
        SlurmParseError: not that.
    """
    pieces, width = text.split(separator), len(FIELDS)
    if pieces.pop().strip("\n") or len(pieces) % width:
        raise SlurmParseError("sinfo's answer is cut short or in another form", text[:200].replace(separator, "|"))
    found: dict[NodeLine, frozenset[str]] = {}
    known, names = last or {}, dict[str, frozenset[str]]()
    for start in range(0, len(pieces), width):
        state_text, reason, user, at, comment, extra, gres_used, nodes = pieces[start : start + width]
        state, flags = node_state(state_text.removeprefix("\n"))
        at_s = epoch_s(at)
        why = reason if at_s else plain(reason)  # a person may have written "none"
        line = NodeLine(
            listed_state(state, flags),
            flags,
            why,
            plain(user) if why else "",
            at_s if why else 0,
            plain(comment.rstrip()),
            plain(extra.rstrip()),
            gres_count(gres_used),
        )
        names[nodes] = known[nodes] if nodes in known else frozenset(expand(nodes, remember=False))
        found[line] = found.get(line, frozenset()) | names[nodes]
    if last is not None:
        last.clear()
        last.update(names)
    return found
