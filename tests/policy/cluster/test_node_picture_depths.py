"""The picture of the nodes, kept from a cheap listing often and a whole reading seldom."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.node_picture import NodePicture, difference, line_of, updated, whole
from slurm_robust.slurm.client import Node, NodeListing

MARKER = "[[srobust-fault v=1 at=1000 kind=xid : XID 79]]"
NAMES = [f"n{i}" for i in range(5)]
nodes = st.builds(
    Node,
    name=st.just(""),
    state=st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN"]),
    flags=st.sets(st.sampled_from(["DRAIN", "NOT_RESPONDING", "COMPLETING", "REBOOT_ISSUED", "RESERVED"])).map(
        frozenset
    ),
    reason=st.sampled_from(["", "srobust: XID 79", "bad fan"]),
    reason_at_s=st.sampled_from([0, 5]),
    partitions=st.sampled_from([("main",), ("main", "all"), ()]),
    boot_at_s=st.sampled_from([0, 10, 20]),
    comment=st.sampled_from(["", "rack 7"]),
    extra=st.sampled_from(["", MARKER]),
    gres_used=st.sampled_from([0, 4]),
)
sites = st.dictionaries(st.sampled_from(NAMES), nodes).map(
    lambda found: {name: replace(node, name=name) for name, node in found.items()}
)


def listed(site: dict[str, Node]) -> NodeListing:
    """What sinfo shows of this site: nothing of nodes in no partition."""
    found: dict[object, frozenset[str]] = {}
    for node in site.values():
        if node.partitions:
            found[line_of(node)] = found.get(line_of(node), frozenset()) | {node.name}
    return found  # type: ignore[return-value]


def read_changes(picture: NodePicture, site: dict[str, Node]) -> NodePicture:
    """The picture after a cheap listing, and the nodes that it asks for."""
    found = difference(picture, listed(site))
    return updated(picture, {**found.changed, **{name: site[name] for name in found.in_question}})


@given(sites, st.lists(sites, max_size=4), sites)
def test_a_whole_reading_corrects_whatever_listings_missed(
    first: dict[str, Node], between: list[dict[str, Node]], last: dict[str, Node]
) -> None:
    """After any sequence of partial readings, a whole one gives what it would have given at once."""
    picture = whole(first.values())
    for site in between:
        picture = read_changes(picture, site)
    # What the daemon does with a whole reading: it takes the place of the picture.
    assert whole(last.values()) == whole(list(last.values())[::-1])
    assert whole(last.values()).nodes == last
    assert updated(picture, last).nodes == {**picture.nodes, **last}


@given(sites, st.lists(sites, min_size=1, max_size=4))
def test_after_a_listing_the_picture_shows_what_the_listing_shows(
    first: dict[str, Node], then: list[dict[str, Node]]
) -> None:
    """Of every node that it names, whatever the readings before were; and a second look finds nothing new."""
    picture = whole(first.values())
    for site in then:
        picture = read_changes(picture, site)
        named = [node for node in site.values() if node.partitions]
        assert all(line_of(picture.nodes[node.name]) == line_of(node) for node in named)
        again = read_changes(picture, site)
        assert again is picture, "nothing has changed, and whoever compares objects must see that"


@given(sites, sites)
def test_what_is_selected_is_what_a_whole_reading_would_select(first: dict[str, Node], then: dict[str, Node]) -> None:
    """Who looks for drained, silent or marked nodes gets the same from both depths."""
    picture = read_changes(whole(first.values()), then)
    alone = whole(picture.nodes.values())
    assert picture == alone
    assert picture.drained.keys() == {n for n, node in picture.nodes.items() if node.drained}
    assert picture.marked.keys() == {n for n, node in picture.nodes.items() if node.extra}
    members = {n for n, node in picture.nodes.items() if "main" in node.partitions}
    assert picture.partitions.get("main", frozenset()) == members


@given(sites, st.integers(11, 20))
def test_a_boot_is_not_missed_where_slurm_shows_that_a_node_was_away(site: dict[str, Node], boot_at_s: int) -> None:
    """A node that was down, silent or rebooting is read by itself: its boot time is then the new one."""
    picture = whole(replace(node, state="DOWN", partitions=("main",)) for node in site.values())
    back = {
        name: replace(node, state="IDLE", flags=frozenset(), partitions=("main",), boot_at_s=boot_at_s)
        for name, node in site.items()
    }
    assert all(node.boot_at_s == boot_at_s for node in read_changes(picture, back).nodes.values())


def test_what_working_nodes_do_needs_no_further_reading() -> None:
    """Jobs come and go, permits are renewed, somebody drains a node without a word: the listing says it all."""
    node = Node("n1", "IDLE", partitions=("main",), boot_at_s=10)
    for now in (
        replace(node, state="ALLOCATED", gres_used=4),
        replace(node, state="MIXED", flags=frozenset(("COMPLETING",))),
        replace(node, comment="[[srobust-drain-permit until=99 most=9]]"),
        replace(node, flags=frozenset(("DRAIN",))),
    ):
        found = difference(whole([node]), listed({"n1": now}))
        assert (dict(found.changed), found.in_question) == ({"n1": now}, ())


def test_a_drained_node_in_use_does_not_flap_between_two_states() -> None:
    """What sinfo calls allocated and scontrol mixed has not changed."""
    mixed = Node("n1", "MIXED", frozenset(("DRAIN",)), partitions=("main",))
    picture = whole([mixed])
    assert read_changes(picture, {"n1": replace(mixed, state="ALLOCATED")}) is picture


def test_a_new_marker_or_reason_asks_for_the_whole_node() -> None:
    """Whether a marker is of this boot, only the boot time tells; a node that nobody knows is read, too."""
    node = Node("n1", "IDLE", partitions=("main",))
    for now in (replace(node, extra=MARKER), replace(node, reason="reboot issued"), replace(node, state="DOWN")):
        assert difference(whole([node]), listed({"n1": now})).in_question == ("n1",)
    assert difference(NodePicture(), listed({"n1": node})).in_question == ("n1",)
