"""The HTTP side knows what the daemon knows, though most lines have only what has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.daemon.api.dashboard.hiding import Hiding
from slurm_robust.daemon.api.http import ShownState
from slurm_robust.daemon.api.state_lines import CHANGED_NODES, Snapshot, encode

NAMES = st.sampled_from(("n1", "n2", "n3", "\ud800"))
STATES = st.lists(st.dictionaries(NAMES, st.sampled_from(("idle", "active", "drained"))), min_size=1, max_size=8)


def rows_of(states: Mapping[str, str], known: Mapping[str, bytes]) -> dict[str, bytes]:
    """The rows; one that is the same is the same object."""
    made = {name: encode({"name": name, "node_state": state}) for name, state in sorted(states.items())}
    return {name: known[name] if known.get(name) == row else row for name, row in made.items()}


@given(STATES, st.data())
def test_the_last_line_and_those_before_it_are_the_whole_state(
    states: list[dict[str, str]], data: st.DataObject
) -> None:
    """Whether or not somebody asks in between, and also where nodes come and go."""
    shown, fed = ShownState(), dict[str, bytes]()
    for number, state in enumerate(states):
        snapshot = Snapshot({"at_s": float(number), "cluster": "a\ud800"}, rows_of(state, fed))
        line = snapshot.changes(fed) if number else None
        assert line is None or line.startswith(CHANGED_NODES)
        shown.take((line or snapshot.whole()) + b"\n")
        fed = dict(snapshot.nodes)
        if data.draw(st.booleans()) or number == len(states) - 1:
            whole = json.loads(snapshot.whole())
            assert shown.value == whole
            assert json.loads(shown.text) == whole
            assert shown.value is shown.value


def test_a_line_with_changes_has_no_other_node() -> None:
    """And none at all where no node has changed."""
    nodes = {name: encode({"name": name}) for name in ("n1", "n2")}
    later = {**nodes, "n2": encode({"name": "n2", "job": "7"})}
    state: dict[str, Any] = {"at_s": 1.0}
    assert Snapshot(state, later).changes(nodes) == b'{"changed_nodes":[{"name":"n2","job":"7"}],"at_s":1.0}'
    assert Snapshot(state, nodes).changes(nodes) == b'{"changed_nodes":[],"at_s":1.0}'
    assert Snapshot(state, nodes).changes({"n1": nodes["n1"]}) is None


def test_what_is_hidden_stays_hidden_when_it_changes() -> None:
    """A name in the row of a node that has changed."""
    shown = ShownState(Hiding(("users",)))
    job = {"job": "7", "name": "llm", "user": "ann"}
    old = {"n1": encode({"name": "n1", "node_state": "idle", "word": ""})}
    new = {"n1": encode({"name": "n1", "node_state": "quarantine", "word": "ann suspects it"})}
    shown.take(Snapshot({"jobs": [job]}, old).whole())
    assert b"ann" not in shown.text
    shown.take(Snapshot({"jobs": [job]}, new).changes(old) or b"")
    assert shown.value["nodes"][0]["word"] == "hidden suspects it"
    assert b"ann" not in shown.text


def test_a_line_that_is_no_state_changes_nothing() -> None:
    """Half a line, a list, a number."""
    shown = ShownState()
    shown.take(b'{"at_s":1.0,"nodes":[]}')
    for line in (b"", b"[]", b"7", b'{"at_s":', b"{nonsense}", b'{"changed_nodes":[7],"at_s":2.0}', b"\xff{}"):
        assert shown.value["at_s"] == 1.0
        shown.take(line)
    assert shown.value["at_s"] == 1.0
