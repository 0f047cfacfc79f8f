"""Which lemon is given to quarantine: whatever a report says, only a free node in service, and not twice."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.lemon_choice import MAX_NAMED, choose, named_lemons
from slurm_robust.slurm.client import Node

NODES = {name: Node(name, "IDLE", partitions=("p",)) for name in ("n1", "n2", "n3")}


def answer(*names: str, **changes: object) -> bytes:
    """A report as it is printed, with more keys than are read."""
    rows = [{"node": n, "why": "x", "failures": 9.0, "chance": 1e-9, "ratio": None} | changes for n in names]
    return json.dumps({"lemons": rows, "watched": [], "nodes": 3}).encode()


def test_the_surest_free_node_is_chosen() -> None:
    """Not one with a job, one that was given already, one that is out of service, or one that Slurm does not know."""
    lemons = named_lemons(answer("gone", "n1", "n2", "n3"))
    drained = replace(NODES["n1"], flags=frozenset({"DRAIN"}))
    assert choose(lemons, NODES, (), ()) == lemons[1]
    assert choose(lemons, NODES, {"n1"}, {"n2"}) == lemons[3]
    assert choose(lemons, NODES | {"n1": drained}, (), ()) == lemons[2]
    assert choose(lemons, NODES, NODES, ()) is None
    assert choose((), NODES, (), ()) is None


@pytest.mark.parametrize(
    "changes",
    [{"chance": 0.5}, {"chance": -1.0}, {"failures": 1.0}],
    ids=["by chance", "no probability", "too few"],
)
def test_what_is_no_lemon_is_left_out(changes: dict[str, object]) -> None:
    """Whatever the program printed."""
    assert named_lemons(answer("n1", **changes)) == ()


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """As a ValueError, and nothing else."""
    with contextlib.suppress(ValueError):
        assert isinstance(named_lemons(data), tuple)


def test_long_and_hostile_answers_are_bounded() -> None:
    """Two thousand lemons, and a sentence for a terminal."""
    many = named_lemons(answer(*(f"n{number}" for number in range(2000)), why="\x1b[2J" + "x" * 5000))
    assert len(many) == MAX_NAMED
    assert len(many[0].why) <= 300
    assert many[0].why.isprintable()
    with pytest.raises(ValueError, match="not a report"):
        named_lemons(b"[" * 100_000)
