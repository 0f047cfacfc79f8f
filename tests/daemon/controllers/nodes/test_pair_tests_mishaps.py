"""Tests of two nodes where Slurm refuses them, where many are wanted at once, and beside other reservations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import PAIR_TEST, FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.policy.cluster.tested_pairs import PairReport
from slurm_robust.slurm.client import Reservation
from slurm_robust.slurm.errors import SlurmRefusedError
from slurm_robust.slurm.values import expand

DAY_S = 86_400
TEXT = "breaker: {max_partition_share: 1.0}\n"


def suspect(world: World, node: str, job_id: int, user: str = "ann") -> None:
    """A job's suspect, as its recovery leaves it."""
    now_s = world.slurm.now_s
    row = Quarantine(node, f"key{job_id}", job_id, f"line-{job_id}", "hang", now_s, now_s, user=user)
    NodeLedger(world.journal).quarantine(row)


def of_two_jobs(world: World, node: str) -> None:
    """A suspect that has to prove itself: an earlier job suspected it, too."""
    now_s = world.slurm.now_s
    earlier = Quarantine(node, "earlier", 90, "line-90", "hang", now_s, now_s, user="ben")
    NodeLedger(world.journal).strike(earlier, now_s, "passed")
    suspect(world, node, 91)


def held(world: World) -> set[str]:
    """Nodes in reservations of tests of two."""
    found = world.slurm.state.reservations.values()
    return {n for r in found if r.name.startswith("srobust-pair-") for n in expand(r.nodes)}


def quarantined(world: World) -> set[str]:
    """Nodes in quarantine."""
    return {q.node for q in NodeLedger(world.journal).quarantines()}


def pairs(world: World) -> list[tuple[str, ...]]:
    """The nodes of each test of two, in order."""
    return [expand(j.req_nodes) for j in world.slurm.state.jobs.values() if j.name.startswith(PAIR_TEST)]


def test_a_test_that_slurm_refuses_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account may not use the partition for it: the partner is free again, and the suspect is not kept for ever."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT))
    submit, tries = world.slurm.submit, []

    def refuses(args: list[str], script: str) -> object:
        if "--nodes=2" in args:
            tries.append(world.slurm.now_s)
            raise SlurmRefusedError("sbatch", "Invalid account or account/partition combination specified")
        return submit(args, script)

    monkeypatch.setattr(world.slurm, "submit", refuses)
    world.run(10)
    of_two_jobs(world, "n2")
    world.run(900)
    assert (held(world), quarantined(world)) == (set(), set())
    assert len(tries) == 3
    assert not any(n.drained for n in world.slurm.state.nodes.values())
    world.journal.close()


def test_the_job_asks_for_a_partition_that_both_are_in(tmp_path: Path) -> None:
    """The suspect's first partition has no other node."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT))
    nodes, asked = world.slurm.state.nodes, []
    nodes["n2"] = replace(nodes["n2"], partitions=("debug", "main"))
    submit = world.slurm.submit
    world.slurm.submit = lambda args, script: (asked.append(args), submit(args, script))[1]  # type: ignore[method-assign]
    world.run(10)
    of_two_jobs(world, "n2")
    world.run(60)
    assert ["--partition=main" in args for args in asked if "--nodes=2" in args] == [True]
    world.journal.close()


def test_a_maintenance_that_is_days_ahead_keeps_no_partner_away(tmp_path: Path) -> None:
    """One within the test's own time does: it must not find its nodes in a test."""
    for ahead_s, expected in ((3 * DAY_S, 1), (120, 0)):
        world = World(tmp_path / str(ahead_s), FakeSlurm(), parse(TEXT))
        start_s = int(world.slurm.now_s) + ahead_s
        everywhere = Reservation(
            "maint", "n[1-6]", ("root",), frozenset(("MAINT",)), start_s, start_s + DAY_S, "INACTIVE"
        )
        world.run(10)
        world.slurm.state.reservations["maint"] = everywhere
        of_two_jobs(world, "n2")
        world.run(60)
        assert len(pairs(world)) == expected
        world.journal.close()


def test_a_storm_of_suspects_leaves_standby_and_idle_nodes(tmp_path: Path) -> None:
    """After a switch failed: half of the pool stays ready for the jobs, and few idle nodes are held at once."""
    world = World(tmp_path, FakeSlurm(60), parse(TEXT + "standby: {size: 4}\n"))
    world.run(200)
    pool = {n for r in world.slurm.state.reservations.values() for n in expand(r.nodes)}
    assert pool == {"n60", "n7", "n8", "n9"}
    assert not world.daemon.context.readings.unchecked
    for number in range(10, 34):
        of_two_jobs(world, f"n{number}")
    idle_most = standby_most = 0
    for _ in range(400):
        world.run(0.5)
        standby_most = max(standby_most, len(held(world) & pool))
        idle_most = max(idle_most, len(held(world) - pool - quarantined(world)))
    assert (standby_most, idle_most) == (2, 4)
    world.run(600)
    assert quarantined(world) == set()
    world.journal.close()


def test_the_only_standby_node_is_ready_again_after_the_broken_one_is_named(tmp_path: Path) -> None:
    """It failed together with a node that fails with everybody: that says nothing of it any more."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT + "standby: {size: 1}\n"))
    world.run(60)
    assert not world.daemon.context.readings.unchecked
    world.slurm.pair_reports[frozenset(("n2",))] = PairReport(together="pairs: wrong numbers")
    suspect(world, "n2", 1)
    world.run(200)
    assert [n.name for n in world.slurm.state.nodes.values() if n.drained] == ["n2"]
    world.run(900)
    assert not world.daemon.context.readings.unchecked
    world.journal.close()


def test_a_partner_that_fails_is_not_ready_while_the_breaker_is_open(tmp_path: Path) -> None:
    """It is not quarantined, but it does not count as tested any more."""
    world = World(tmp_path, FakeSlurm(), parse("standby: {size: 2}\nbreaker: {max_drains: 0}"))
    world.run(200)
    assert not world.daemon.context.readings.unchecked
    world.slurm.pair_reports[frozenset(("n5",))] = PairReport(failed={"n5": "in-node: XID 79"})
    world.daemon.breaker._open("tried here")
    suspect(world, "n2", 1)
    world.run(900)
    assert "n5" in world.daemon.context.readings.unchecked
    world.journal.close()


def test_evidence_that_cannot_be_printed_drains_all_the_same(tmp_path: Path) -> None:
    """PyTorch's errors have lines; Slurm's reasons have none."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT + "standby: {size: 2}\n"))
    world.run(200)
    world.slurm.pair_reports[frozenset(("n2",))] = PairReport(
        failed={"n2": "in-node: CUDA error\nCompile with \x1b[1m"}
    )
    suspect(world, "n2", 1)
    world.run(60)
    reason = world.slurm.state.nodes["n2"].reason
    assert "CUDA error?Compile" in reason
    assert reason.isprintable()
    world.journal.close()


def test_a_node_that_got_a_seat_meanwhile_is_left_to_its_job(tmp_path: Path) -> None:
    """The seat was given after the partner was chosen: the suspect meets the other one."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT + "standby: {size: 2}\n"))
    world.run(200)
    suspect(world, "n2", 1)
    for _ in range(100):
        world.run(0.5)
        if world.daemon.pair_tests.taken():
            break
    assert world.daemon.pair_tests.taken() == {"n2", "n5"}
    world.slurm.create_reservation("srobust-seat-7", "n5", ("ann",), 3, ("OVERLAP",))
    asyncio.run(world.daemon.context.read_reservations())
    before = len(pairs(world))
    world.run(60)
    assert pairs(world)[before:] == [("n2", "n6")]
    world.journal.close()


def test_a_full_check_that_slurm_refuses_keeps_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account may not use the node's partition: unknown is not unhealthy, and not for ever."""
    world = World(tmp_path, FakeSlurm(), parse(TEXT))
    refused = SlurmRefusedError("sbatch", "Invalid account or account/partition combination specified")

    def refuses(*_: object) -> None:
        raise refused

    monkeypatch.setattr(world.slurm, "submit", refuses)
    world.run(10)
    suspect(world, "n2", 1)
    world.run(600)
    assert quarantined(world) == set()
    assert not world.slurm.state.nodes["n2"].drained
    world.journal.close()


def test_an_accused_partner_that_cannot_be_checked_keeps_its_failed_test(tmp_path: Path) -> None:
    """It goes back, and its strike rests on more than a claim."""
    world = World(tmp_path, FakeSlurm(recheck_exit="2:0"), parse(TEXT))
    now_s, ledger = world.slurm.now_s, NodeLedger(world.journal)
    why = "failed a test with n2: in-node: XID 79"
    ledger.quarantine(Quarantine("n5", "pair.1", 0, "", why, now_s, now_s, accused=why))
    world.run(900)
    assert quarantined(world) == set()
    assert [strike.failed_test for strike in ledger.strikes("n5", 0.0)] == [why]
    world.journal.close()
