"""Suspects that passed their full check are tested with another node, against a simulated Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import Dies, World
from fake_slurm import PAIR_TEST, FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.policy.cluster.tested_pairs import PairReport
from slurm_robust.slurm.values import expand

POOL = "standby: {size: 2}\nbreaker: {max_partition_share: 1.0}\n"
BREAKER = "breaker: {max_partition_share: 1.0}\n"


def made(folder: Path, text: str = POOL, nodes: int = 6) -> World:
    """A world whose standby nodes are ready: n5 and n6."""
    world = World(folder, FakeSlurm(nodes), parse(text))
    world.run(120)
    assert not world.daemon.context.readings.unchecked
    return world


def suspect(world: World, node: str = "n2", job_id: int = 1, user: str = "ann") -> None:
    """A job's suspect, as its recovery leaves it."""
    now_s = world.slurm.now_s
    row = Quarantine(node, f"key{job_id}", job_id, f"line-{job_id}", "hang", now_s, now_s, user=user)
    NodeLedger(world.journal).quarantine(row)


def met(world: World) -> list[tuple[str, ...]]:
    """The nodes of each test of two, in order."""
    return [
        expand(job.req_nodes)
        for job in world.slurm.state.jobs.values()
        if job.name.startswith(PAIR_TEST) and job.reservation.startswith("srobust-pair-")
    ]


def alerts(world: World, what: str) -> list[str]:
    """What a person was told."""
    query = "SELECT text FROM events WHERE level = 'warning' AND what = ?"
    return [row["text"] for row in world.journal.db.execute(query, (what,))]


def word(world: World, node: str = "n2") -> str:
    """What `srobust nodes` says of it."""
    return str(next(n["word"] for n in published(world.daemon)["nodes"] if n["name"] == node))


def gone(world: World, node: str = "n2") -> bool:
    """True if its quarantine has ended and left nothing behind."""
    left = [name for name in world.slurm.state.reservations if node in name]
    return not left and node not in {q.node for q in NodeLedger(world.journal).quarantines()}


@pytest.mark.parametrize(("text", "eud"), [(POOL, ""), (POOL + "nodetest: {eud: true}", " --eud")])
def test_a_suspect_meets_a_standby_node_and_both_go_back(tmp_path: Path, text: str, eud: str) -> None:
    """One job on the two nodes, in a reservation of its own that nobody else gets; the pool stays as it is."""
    world = made(tmp_path, text)
    suspect(world)
    for _ in range(60):
        world.run(0.5)
        if "srobust-pair-n2" in world.slurm.state.reservations:
            break
    held = world.slurm.state.reservations["srobust-pair-n2"]
    assert (held.nodes, held.users) == ("n[2,5]", ("root",))
    assert "is tested with n5" in word(world)
    world.run(60)
    assert met(world) == [("n2", "n5")]
    assert gone(world)
    assert {n for r in world.slurm.state.reservations.values() for n in expand(r.nodes)} == {"n5", "n6"}
    script = next(s for s in reversed(world.slurm.scripts) if "--tell-slurm --tests" in s)
    assert f'--tests=in-node,pairs,alignment --budget=120{eud} --job "$SLURM_JOB_ID"' in script
    done = {a.kind: a.done_at_s for a in world.journal.actions("key1")}
    assert done["test_pair"] is not None
    assert done["release_pair"] is not None
    world.journal.close()


def test_a_free_node_of_nobodys_is_taken_only_for_a_suspect_of_two_jobs(tmp_path: Path) -> None:
    """One job suspected it: its full check is enough. Two did: a free node is reserved; a job that is there wins."""
    world = made(tmp_path, BREAKER)
    suspect(world)
    world.run(60)
    assert gone(world)
    assert met(world) == []
    suspect(world, job_id=2)
    world.slurm.run_job(("n5", "n6"))
    world.run(60)
    assert met(world) == [("n2", "n4")]
    assert gone(world)
    assert not alerts(world, "suspect.unproven")
    world.journal.close()


def test_who_fails_with_two_nodes_is_drained_and_they_are_not(tmp_path: Path) -> None:
    """The first failure proves nothing; the first partner passes its own check anew before it counts as ready."""
    world = made(tmp_path)
    world.slurm.pair_reports[frozenset(("n2",))] = PairReport(together="pairs: wrong numbers")
    suspect(world)
    world.run(90)
    assert met(world) == [("n2", "n5"), ("n2", "n6")]
    reason = world.slurm.state.nodes["n2"].reason
    assert reason == "srobust: fails with n5 and with n6, which passed their own tests: pairs: wrong numbers"
    assert [n.name for n in world.slurm.state.nodes.values() if n.drained] == ["n2"]
    assert gone(world)
    world.run(900)
    assert not world.daemon.context.readings.unchecked
    world.journal.close()


def test_a_partner_that_fails_is_put_in_quarantine_itself(tmp_path: Path) -> None:
    """The suspect meets another node and goes back; the partner proves there that it is broken."""
    world = made(tmp_path)
    world.slurm.pair_reports[frozenset(("n5",))] = PairReport(failed={"n5": "alignment: other bits"})
    suspect(world)
    world.run(120)
    assert [nodes for nodes in met(world) if "n2" in nodes] == [("n2", "n5"), ("n2", "n6")]
    assert gone(world)
    assert not world.slurm.state.nodes["n2"].drained
    world.run(120)
    assert world.slurm.state.nodes["n5"].reason == "srobust: n5: alignment: other bits"
    assert gone(world, "n5")
    world.journal.close()


def test_a_standby_node_that_fails_with_two_suspects_is_the_broken_one(tmp_path: Path) -> None:
    """Neither suspect is drained for it."""
    world = made(tmp_path)
    world.slurm.pair_reports[frozenset(("n5",))] = PairReport(together="pairs: wrong numbers")
    suspect(world)
    world.run(100)
    assert gone(world)
    suspect(world, "n3", job_id=2)
    # n5 is known to be doubtful, and passed only its full check since: n6 and a new pool member cannot be had.
    NodeLedger(world.journal).standby_met("n5", world.slurm.now_s, "")
    world.run(300)
    assert not world.slurm.state.nodes["n2"].drained
    assert not world.slurm.state.nodes["n3"].drained
    world.run(1500)
    assert world.slurm.state.nodes["n5"].drained
    assert "failed together with" in " ".join(alerts(world, "pair_test.failed"))
    world.journal.close()


def test_tests_that_cannot_run_are_told_once_and_blame_nobody(tmp_path: Path) -> None:
    """No PyTorch: the full check counts alone; a suspect of two jobs goes back with an alert after three tries."""
    world = made(tmp_path, BREAKER + "standby: {size: 2}")
    world.slurm.pair_reports[frozenset()] = PairReport(untested="pairs: PyTorch cannot be loaded")
    suspect(world)
    world.run(60)
    assert gone(world)
    suspect(world, job_id=2)
    world.run(600)
    assert gone(world)
    assert len(met(world)) == 4
    assert len(alerts(world, "pair_test.untested")) == 1
    (told,) = alerts(world, "suspect.unproven")
    assert "PyTorch cannot be loaded" in told
    assert not any(n.drained for n in world.slurm.state.nodes.values())
    world.journal.close()


def test_a_test_that_tells_nothing_counts_as_none(tmp_path: Path) -> None:
    """A job that dies with the exit code of a failure, but without its report."""
    world = made(tmp_path)
    world.slurm.pair_reports[frozenset()] = PairReport(failed={"n2": "x"})
    world.slurm.no_report = True
    suspect(world)
    world.run(60)
    assert gone(world)
    assert not world.slurm.state.nodes["n2"].drained
    world.journal.close()


def test_a_suspect_of_two_jobs_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Every other node has a job: it says what it waits for, and goes back at the limit with a strike and an alert."""
    world = made(tmp_path, BREAKER + "nodetest: {proof_wait_h: 0.1}", nodes=3)
    suspect(world)
    world.run(30)
    world.slurm.run_job(("n1", "n3"))
    suspect(world, job_id=2)
    world.run(300)
    assert "2 jobs suspected it, and its full check passed: it waits for a free node" in word(world)
    assert "for 6 min at most" in word(world)
    world.run(120)
    assert gone(world)
    assert len(alerts(world, "suspect.unproven")) == 1
    assert len(NodeLedger(world.journal).strikes("n2", 0)) == 2
    world.journal.close()


def test_claims_alone_keep_a_node_from_everyone_for_minutes(tmp_path: Path) -> None:
    """However many jobs named it: where no other node is free to meet it, it is back after a quarter of an hour."""
    world = made(tmp_path, BREAKER, nodes=3)
    suspect(world)
    world.run(30)
    world.slurm.run_job(("n1", "n3"))
    suspect(world, job_id=2, user="ben")
    world.run(840, step_s=1)
    assert not gone(world)
    world.run(90, step_s=1)
    assert gone(world)
    assert not world.slurm.state.nodes["n2"].drained
    world.journal.close()


def test_switched_off_the_full_check_counts_alone(tmp_path: Path) -> None:
    """An empty list, or only the test that needs one node."""
    for number, tests in enumerate(("[]", "[in-node]")):
        world = made(tmp_path / str(number), f"{POOL}nodetest: {{tests: {tests}}}")
        suspect(world)
        world.run(30)
        suspect(world, job_id=2)
        world.run(30)
        assert gone(world)
        assert not any(job.name.startswith(PAIR_TEST) for job in world.slurm.state.jobs.values())
        world.journal.close()


@pytest.mark.parametrize("actions", range(1, 9))
def test_a_daemon_killed_after_any_action_leaves_nothing_behind(tmp_path: Path, actions: int) -> None:
    """Not a second test, no reservation, no row; the suspect goes back all the same."""
    world = made(tmp_path)
    suspect(world)
    world.daemon.actor.crash = Dies(actions)
    world.run(120)
    assert met(world) == [("n2", "n5")]
    assert gone(world)
    assert not world.daemon.pair_tests.busy
    world.journal.close()


def test_a_person_who_drains_the_suspect_ends_its_test(tmp_path: Path) -> None:
    """The job is cancelled, the partner is free again."""
    world = made(tmp_path)
    world.slurm.recheck_ends_s = 5.0
    suspect(world)
    for _ in range(100):
        world.run(0.5)
        if any(j.name.startswith(PAIR_TEST) and j.state == "RUNNING" for j in world.slurm.state.jobs.values()):
            break
    node = world.slurm.state.nodes["n2"]
    world.slurm.state.nodes["n2"] = replace(node, flags=frozenset(("DRAIN",)), reason="bad fan")
    world.run(60)
    assert gone(world)
    assert not world.daemon.pair_tests.busy
    assert world.slurm.state.nodes["n2"].reason == "bad fan"
    world.journal.close()


def test_three_jobs_of_one_user_drain_nothing_and_another_users_does(tmp_path: Path) -> None:
    """Told once, with what would be needed."""
    world = made(tmp_path, BREAKER)
    for job_id in range(1, 6):
        suspect(world, job_id=job_id)
        world.run(90)
        assert gone(world)
    assert not world.slurm.state.nodes["n2"].drained
    (told,) = alerts(world, "strikes.one_user")
    assert "all by jobs of ann: not drained" in told
    shown = next(n for n in published(world.daemon)["nodes"] if n["name"] == "n2")
    assert (shown["strikes"], shown["strikes_by_user"]) == (5, {"ann": 5})
    suspect(world, job_id=6, user="ben")
    world.run(90)
    assert world.slurm.state.nodes["n2"].reason == ("srobust: 6 strikes in 14 days, from different jobs (ann 5, ben 1)")
    world.journal.close()


def test_an_open_breaker_keeps_the_suspect_and_accuses_nobody(tmp_path: Path) -> None:
    """It stays in quarantine, not drained; a partner that fails is not put into one."""
    world = made(tmp_path, "standby: {size: 2}\nbreaker: {max_drains: 0}")
    world.slurm.pair_reports[frozenset(("n2",))] = PairReport(failed={"n2": "other bits", "n5": "other bits"})
    suspect(world)
    world.run(60)
    assert world.daemon.breaker.why_open
    assert not any(n.drained for n in world.slurm.state.nodes.values())
    assert word(world).endswith("would drain: n2: other bits; n5: other bits")
    world.journal.close()
