"""Keeps the picture of all nodes, read in two ways: a cheap listing often, all facts of all nodes seldom. Pure.

The listing shows the facts of nodes that change while the site runs. `difference` compares the listing with the
picture. Most changes follow from the listing alone. If a change needs more facts, such as when the node booted,
`difference` names the node, and the node is read by itself. What a listing cannot show (a node in no partition, another
partition, more memory) is corrected by the next whole reading, which replaces the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_robust.marks import blind_marker, fault_marker, lease_marker, watch_marker
from slurm_robust.policy.cluster.node_states import drained_by_us
from slurm_robust.slurm.client import Node, NodeLine, NodeListing
from slurm_robust.slurm.values import listed_state

WORKING_STATES = frozenset(("IDLE", "ALLOCATED", "MIXED", "COMPLETING"))
WORKING_FLAGS = frozenset(("COMPLETING", "PLANNED", "RESERVED", "MAINTENANCE", "DRAIN"))
"""A node that stays within the working states and these flags has not booted in between, as far as Slurm knows."""


def line_of(node: Node) -> NodeLine:
    """Return what a listing shows of this node."""
    return NodeLine(
        listed_state(node.state, node.flags),
        node.flags,
        node.reason,
        node.reason_user,
        node.reason_at_s,
        node.comment,
        node.extra,
        node.gres_used,
    )


@dataclass(frozen=True)
class Difference:
    """The difference between a listing and the picture.

    Attributes:
        changed: The nodes that have changed, as they are now.
        in_question: Nodes that have to be read by themselves, sorted.
    """

    changed: Mapping[str, Node] = field(default_factory=dict)
    in_question: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodePicture:
    """All nodes, and the sets of nodes that parts of the daemon look at.

    Attributes:
        nodes: All nodes, by name. It is another mapping only if something has changed.
        lines: The same nodes as a listing would show them.
        drained: Nodes out of service, whoever took them out.
        ours: Nodes that this project took out of service.
        silent: Nodes that do not respond, or that Slurm has given up.
        marked: Nodes with a fault marker.
        blind: Nodes with a blind marker, also with one that does not hold any more.
        full: Nodes with a marker of full file systems, also with one that does not hold any more.
        watch_builds: The names of the nodes whose node watch says its build, by that build.
        watch_modes: The names of the nodes whose node watch says its mode, by that mode.
        leased: Nodes whose comment has a daemon's lease: one node as a rule.
        gres_used: Nodes whose generic resources are given to jobs, at least in part.
        partitions: The names of the nodes of each partition.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    lines: NodeListing = field(default_factory=dict)
    drained: Mapping[str, Node] = field(default_factory=dict)
    ours: Mapping[str, Node] = field(default_factory=dict)
    silent: Mapping[str, Node] = field(default_factory=dict)
    marked: Mapping[str, Node] = field(default_factory=dict)
    blind: Mapping[str, Node] = field(default_factory=dict)
    full: Mapping[str, Node] = field(default_factory=dict)
    watch_builds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    watch_modes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    leased: Mapping[str, Node] = field(default_factory=dict)
    gres_used: Mapping[str, Node] = field(default_factory=dict)
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)


def silent(node: Node) -> bool:
    """Return whether Slurm shows that the node does not respond, or that it has given the node up."""
    return "NOT_RESPONDING" in node.flags or node.state == "DOWN"


def whole(nodes: Iterable[Node]) -> NodePicture:
    """Return the picture that a whole reading gives."""
    return _picture({node.name: node for node in nodes})


def updated(picture: NodePicture, changed: Mapping[str, Node]) -> NodePicture:
    """Return the picture with the `changed` nodes as they are now; the given picture itself if nothing differs."""
    known = picture.nodes
    changed = {name: node for name, node in changed.items() if known.get(name) != node}
    return _picture({**known, **changed}) if changed else picture


def _picture(nodes: Mapping[str, Node]) -> NodePicture:
    lines: dict[NodeLine, set[str]] = {}
    partitions: dict[tuple[str, ...], set[str]] = {}
    for name, node in nodes.items():
        lines.setdefault(line_of(node), set()).add(name)
        partitions.setdefault(node.partitions, set()).add(name)
    # Nodes with an equal line are alike in all facts that are used here.
    by_line = {line: frozenset(names) for line, names in lines.items()}
    alike = [(nodes[next(iter(names))], names) for names in by_line.values()]

    def those(wanted: Iterable[frozenset[str]]) -> dict[str, Node]:
        return {name: nodes[name] for names in wanted for name in names}

    modes: dict[str, set[str]] = {}
    builds: dict[str, set[str]] = {}
    for node, these in alike:
        if mode := watch_marker.parse(node.extra):
            modes.setdefault(mode, set()).update(these)
        if made := watch_marker.parse_build(node.extra):
            builds.setdefault(made, set()).update(these)
    members: dict[str, set[str]] = {}
    for of, names in partitions.items():
        for partition in of:
            members.setdefault(partition, set()).update(names)
    return NodePicture(
        nodes,
        by_line,
        drained=those(names for node, names in alike if node.drained),
        ours=those(names for node, names in alike if drained_by_us(node)),
        silent=those(names for node, names in alike if silent(node)),
        marked=those(names for node, names in alike if fault_marker.marked(node.extra)),
        blind=those(names for node, names in alike if blind_marker.marked(node.extra)),
        full=those(names for node, names in alike if blind_marker.marked(node.extra, blind_marker.FULL)),
        watch_builds={made: frozenset(names) for made, names in builds.items()},
        watch_modes={mode: frozenset(names) for mode, names in modes.items()},
        leased=those(names for node, names in alike if lease_marker.marked(node.comment)),
        gres_used=those(names for node, names in alike if node.gres_used),
        partitions={partition: frozenset(names) for partition, names in members.items()},
    )


def difference(picture: NodePicture, listing: NodeListing) -> Difference:
    """Return what a listing shows that the picture does not have yet."""
    changed: dict[str, Node] = {}
    in_question: list[str] = []
    for line, names in listing.items():
        for name in names - picture.lines.get(line, frozenset()):
            node = picture.nodes.get(name)
            if node is None or _in_question(node, line):
                in_question.append(name)
            else:
                changed[name] = replace(node, **line._asdict())
    return Difference(changed, tuple(sorted(in_question)))


def _in_question(node: Node, line: NodeLine) -> bool:
    """Return whether the node may have booted since, or the listing shows a change that needs more facts of it."""
    states = {node.state, line.state} <= WORKING_STATES and (node.flags | line.flags) <= WORKING_FLAGS
    same_texts = (node.reason, node.extra) == (line.reason, line.extra)
    return not (states and same_texts)
