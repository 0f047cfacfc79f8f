"""How the daemon keeps its picture of the nodes: what changed often, all of every node once a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.daemon.context import MAX_NAMED, WHOLE_AFTER_S
from slurm_robust.slurm.client import Node, NodeListing
from slurm_robust.slurm.errors import SlurmParseError

IDLE_S = 6.0
"""Within this time an idle daemon has read the nodes once."""


class CountingSlurm(FakeSlurm):
    """Counts what is read."""

    def __init__(self, nodes: int = 6) -> None:
        super().__init__(nodes)
        self.counted = Counter[str]()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("nodes", "node_listing", "nodes_named", "job", "jobs_named", "reservations"):
            self.counted[name] += 1
        return found

    def change(self, name: str, **values: object) -> None:
        """Something happens to a node."""
        self.state.nodes[name] = replace(self.state.nodes[name], **values)  # type: ignore[arg-type]


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes worlds whose daemon has read everything."""
    made: list[World] = []

    def world(nodes: int = 6, text: str = "") -> World:
        one = World(tmp_path / str(len(made)), CountingSlurm(nodes), parse(text))
        made.append(one)
        one.run(20, step_s=1.0)
        return one

    yield world
    for one in made:
        one.journal.close()


def counted(w: World) -> Counter[str]:
    """What was read so far; begins anew."""
    assert isinstance(w.slurm, CountingSlurm)
    found, w.slurm.counted = w.slurm.counted, Counter()
    return found


def test_all_of_every_node_is_read_once_a_minute(make: Make) -> None:
    """In between only what changes, as often as before; nothing more where nothing changes."""
    w = make()
    counted(w)
    before = w.daemon.context.readings.picture
    w.run(4 * WHOLE_AFTER_S, step_s=1.0)
    found = counted(w)
    assert 3 <= found["nodes"] <= 5
    assert 32 <= found["nodes"] + found["node_listing"] <= 44
    assert not found["nodes_named"]
    now = w.daemon.context.readings.picture
    assert now.nodes.keys() == before.nodes.keys()


def test_a_quiet_site_keeps_its_picture(make: Make) -> None:
    """The same object, by which everybody sees that nothing has changed."""
    w = make()
    before = w.daemon.context.readings.picture
    w.run(2 * WHOLE_AFTER_S, step_s=1.0)
    assert w.daemon.context.readings.picture is before


def test_what_only_a_whole_reading_shows_comes_within_a_minute(make: Make) -> None:
    """Another GPU, a node in no partition: no listing has them."""
    w = make()
    w.slurm.state.nodes["n1"] = replace(w.slurm.state.nodes["n1"], gres="gpu:8")
    w.slurm.state.nodes["n9"] = Node("n9", "IDLE")
    del w.slurm.state.nodes["n6"]
    w.run(WHOLE_AFTER_S + 2 * IDLE_S, step_s=1.0)
    nodes = w.daemon.context.readings.nodes
    assert (nodes["n1"].gres, sorted(nodes)) == ("gpu:8", ["n1", "n2", "n3", "n4", "n5", "n9"])


def test_a_new_node_and_a_boot_are_read_by_name(make: Make) -> None:
    """Within seconds, and without a whole reading."""
    w = make()
    assert isinstance(w.slurm, CountingSlurm)
    w.slurm.change("n2", state="DOWN", reason="srobust: x : reboot issued")
    w.slurm.state.nodes["n7"] = Node("n7", "IDLE", partitions=("main",))
    w.run(2 * IDLE_S, step_s=1.0)
    w.slurm.change("n2", state="IDLE", boot_at_s=77)
    counted(w)
    w.run(2 * IDLE_S, step_s=1.0)
    nodes, found = w.daemon.context.readings.nodes, counted(w)
    assert (nodes["n2"].boot_at_s, "n7" in nodes) == (77, True)
    assert (found["nodes"], found["nodes_named"]) == (0, 1)


def test_many_in_question_are_one_whole_reading(make: Make) -> None:
    """Half the site falls silent: not one name after the other."""
    w = make(3 * MAX_NAMED)
    assert isinstance(w.slurm, CountingSlurm)
    for number in range(1, 2 * MAX_NAMED):
        w.slurm.change(f"n{number}", flags=frozenset(("NOT_RESPONDING",)))
    counted(w)
    w.run(2 * IDLE_S, step_s=1.0)
    found = counted(w)
    assert (found["nodes"], found["nodes_named"]) == (1, 0)
    assert len(w.daemon.context.readings.picture.silent) == 2 * MAX_NAMED - 1


def test_a_slurmctld_that_was_away_is_read_as_a_whole(make: Make) -> None:
    """It may have forgotten, and nobody knows what it was told in between."""
    w = make()
    counted(w)
    w.slurm.down = True
    w.run(3, step_s=1.0)
    w.slurm.down = False
    w.slurm.state.nodes["n1"] = replace(w.slurm.state.nodes["n1"], gres="gpu:4")
    w.run(2 * IDLE_S, step_s=1.0)
    assert w.daemon.context.readings.nodes["n1"].gres == "gpu:4"


def test_a_listing_that_cannot_be_read_stops_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sinfo that a site has wrapped: the nodes are read in full, and a claim is answered."""
    w = make()

    def listing() -> NodeListing:
        raise SlurmParseError("sinfo's answer is cut short or in another form")

    monkeypatch.setattr(w.slurm, "node_listing", listing)
    w.slurm.state.nodes["n6"] = replace(w.slurm.state.nodes["n6"], reason="disk", flags=frozenset(("DRAIN",)))
    w.run(2 * IDLE_S, step_s=1.0)
    assert w.daemon.context.readings.nodes["n6"].drained
    w.slurm.run_job(("n1", "n2"))
    w.claim(1, ("n2",))
    w.run(20)
    assert w.outcomes() == ["running"]


def test_recoveries_read_their_jobs_together(make: Make) -> None:
    """Eight jobs that end slowly cost two calls a look, and fewer looks the longer nothing changes."""
    w = make(16)
    for number in range(1, 9):
        job = w.slurm.run_job((f"n{number}",))
        w.slurm.stuck.add(f"n{number}")
        w.claim(job.ref.job_id, (f"n{number}",))
    w.run(10)
    assert len(w.daemon.recoveries.open) == 8
    counted(w)
    w.run(30, step_s=0.1)
    found = counted(w)
    assert found["jobs_named"] <= 40, "once a second at last, for all of them"
    assert found["job"] < found["jobs_named"]


def test_two_claims_in_one_reading_get_different_nodes(make: Make) -> None:
    """The seat of the first is decided, and not yet created, when the second is decided."""
    w = make(8)
    first, second = (w.slurm.run_job(nodes) for nodes in (("n1", "n2"), ("n3", "n4")))
    for job in (first, second):
        w.claim(job.ref.job_id, job.nodes[:1])
    w.run(2)
    rows = {row.job_id: row.recovery for row in w.journal.incidents()}
    one, other = rows[first.ref.job_id], rows[second.ref.job_id]
    assert one is not None
    assert other is not None
    assert len(one.standby) == len(other.standby) == 1
    assert not set(one.seat_nodes) & set(other.seat_nodes)
