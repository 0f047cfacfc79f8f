"""How many nodes claims take out of service, against a simulated Slurm: the job is back at once, its suspect stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_world import World, held, worlds
from snapshots import published

from slurm_robust.marks.claim import parse_answer

Make = Callable[..., World]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Makes a world that has read everything once."""
    with worlds(tmp_path, World) as make:
        yield lambda text="", nodes=6: make(text, nodes)


def said(world: World) -> str:
    """What the newest incident says."""
    incident = world.journal.incidents()[0].incident
    return incident.plan.reason if incident.plan is not None else incident.outcome


def test_three_users_programs_do_not_take_four_of_six_nodes(made: Make) -> None:
    """Two are out at most; every job is back without its suspects, the breaker stays closed, and a person is told."""
    world = made("quarantine: {claim_limit_s: 86400}\nstandby: {size: 0}")
    world.slurm.recheck_ends_s = 1e6  # no quarantine ends meanwhile
    most = 0
    for node, user in (("n1", "ann"), ("n2", "ben"), ("n3", "cy"), ("n4", "ann")):
        number = world.slurm.run_job((node,), user=user).ref.job_id
        world.run(4)
        world.claim(number, (node,))
        for _ in range(20):
            world.run(1)
            most = max(most, len(held(world)))
        job = world.slurm.state.jobs[number]
        assert (job.state, job.restart_count, node in job.nodes) == ("RUNNING", 1, False)
    assert most == 2
    assert held(world) == {"n1", "n2"}
    assert not world.daemon.breaker.why_open
    assert "n4 stays in service" in said(world)
    assert "breaker.max_partition_share" in said(world)
    told = world.journal.db.execute("SELECT text FROM events WHERE what = 'claim.suspect_kept'").fetchall()
    assert len(told) == 2
    breaker = published(world.daemon)["breaker"]
    assert (breaker["out"], breaker["quarantined"]) == (2, 2)


def test_one_user_takes_three_nodes_out_within_an_hour(made: Make) -> None:
    """Each passes its check and is back within minutes; the fourth claim of the hour takes none out."""
    world = made(nodes=40)
    quarantined: list[str] = []
    for node in ("n1", "n2", "n3", "n4", "n5"):
        if node == "n5":
            world.run(3600, step_s=10)
        number = world.slurm.run_job((node,), user="ann").ref.job_id
        world.run(4)
        world.claim(number, (node,))
        world.run(3)
        quarantined += held(world)
        world.run(120, step_s=1)
        assert held(world) == set()
        if node == "n4":
            assert "quarantine.max_per_user_hour is 3: n4 stays in service" in said(world)
            answer = parse_answer(world.slurm.state.jobs[number].admin_comment)
            assert answer is not None
            assert (answer.state, "n4 stays in service" in answer.why) == ("accepted", True)
        job = world.slurm.state.jobs[number]
        assert (job.state, job.restart_count, node in job.nodes) == ("RUNNING", 1, False)
    assert quarantined == ["n1", "n2", "n3", "n5"]


@pytest.mark.parametrize(
    ("grade", "out"), [("", True), ("certain", True), ("strong", True), ("weak", False), ("none", False)]
)
def test_a_claim_with_weak_evidence_gets_its_requeue_and_no_quarantine(made: Make, grade: str, out: bool) -> None:
    """The suspect gets no strike, either."""
    world = made()
    world.slurm.run_job(("n1", "n2"))
    world.run(4)
    world.claim(1, ("n2",), grade=grade)
    world.run(3)
    assert held(world) == ({"n2"} if out else set())
    job = world.slurm.state.jobs[1]
    assert (job.state, job.restart_count, "n2" in job.nodes) == ("RUNNING", 1, False)
    world.run(60)
    assert len(world.daemon.ledger.strikes("n2", 0)) == out
    assert ("n2 stays in service" in said(world)) is not out


def test_drains_by_claims_have_the_same_bound(made: Make) -> None:
    """`quarantine.claims: drain`."""
    world = made("quarantine: {claims: drain, max_per_user_hour: 1}\nbreaker: {max_partition_share: 1.0}")
    for node in ("n1", "n2"):
        number = world.slurm.run_job((node,), user="ann").ref.job_id
        world.run(4)
        world.claim(number, (node,))
        world.run(10)
        assert node not in world.slurm.state.jobs[number].nodes
    assert [name for name, node in world.slurm.state.nodes.items() if node.drained] == ["n1"]


def test_a_quarantine_takes_its_place_in_the_breaker(made: Make) -> None:
    """Of six nodes two may be out: one is in quarantine, a second one is drained, and a third one opens the breaker."""
    world = made()
    world.slurm.recheck_ends_s = 1e6
    world.slurm.run_job(("n1", "n2"))
    world.run(4)
    world.claim(1, ("n2",))
    world.run(10)
    world.slurm.drain("n5", "srobust: XID 79")
    world.run(10)
    assert not world.daemon.breaker.why_open
    world.slurm.drain("n6", "srobust: XID 79")
    world.run(10)
    assert "3 of 6 nodes of partition main" in world.daemon.breaker.why_open
