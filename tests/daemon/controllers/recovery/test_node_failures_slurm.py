"""Nodes that die or freeze, with and without a word of the wrapper."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from daemon_scene import Scene
from helpers import wait_until

pytestmark = pytest.mark.slurm


@contextlib.contextmanager
def lost(scene: Scene, node: str) -> Iterator[None]:
    """A node without power, back afterwards."""
    scene.cluster.kill_slurmd(node)
    try:
        yield
    finally:
        scene.cluster.start_slurmd(node)
        scene.cluster.wait_ready([node])


@pytest.mark.variant
def test_lost_batch_node_without_a_word(scene: Scene) -> None:
    """The batch node dies, and the wrapper with it: the job gets other nodes before anybody else does."""
    scene.start(standby={"size": 1})
    wait_until(scene.ours, 10, "a standby pool")
    job = scene.submit("-N3", "--exclusive")
    before = scene.watched(job)
    competitor = scene.submit("-N2", "--exclusive", script="sleep 600")
    dead = before.batch_host
    with lost(scene, dead):
        wait_until(lambda: f"srobust-seat-{job}" in scene.ours(), 30, f"seats held ahead\n{scene.tail()}")
        after = scene.running(job, restart=1, timeout_s=60)
        assert dead not in after.nodes
        assert scene.job(competitor).state == "PENDING"
        wait_until(lambda: scene.node(dead).reason.startswith("srobust: stopped responding"), 20, "drained, witnessed")
        incident = scene.await_incident(job, kind="node_lost", outcome="running")
        assert [s["node"] for s in incident["verdict"]["suspects"]] == [dead]
        assert f"srobust-seat-{job}" not in scene.ours()


@pytest.mark.variant
def test_two_nodes_lost_at_once_and_one_comes_back_late(scene: Scene) -> None:
    """The job's claim blames neither: it keeps its standby node, and runs as soon as a third node is there."""
    scene.start(standby={"size": 1}, seat={"start_timeout_s": 8})
    wait_until(scene.ours, 10, "a standby pool")
    job = scene.submit("-N3", "--exclusive")
    before = scene.watched(job)
    (standby,) = {*scene.cluster.node_names} - {*before.nodes}
    first, second = (n for n in before.nodes if n != before.batch_host)
    with lost(scene, first):
        with lost(scene, second):
            scene.await_incident(job, 40, kind="node_lost")
            scene.claim(job, [], why="2 of 3 nodes are silent: a cause that they share, so none is evicted")
            scene.await_incident(job, 60, kind="claim", outcome="not_started")
            assert scene.job(job).state == "PENDING"
            assert not [name for name in scene.ours() if "quarantine" in name]
        after = scene.running(job, restart=1, timeout_s=30)
        assert sorted(after.nodes) == sorted((before.batch_host, second, standby))
        wait_until(lambda: f"srobust-seat-{job}" not in scene.ours(), 20, "the seat is let go")


@pytest.mark.variant
def test_a_lost_node_that_a_person_resumes_is_given_to_its_job(scene: Scene) -> None:
    """No other node is free: the job waits, and gets its own node back, which no standby pool takes."""
    job = scene.submit("-N4", "--exclusive")
    before = scene.watched(job)
    scene.start(standby={"size": 1, "check_max_age_h": 0})
    gone = next(n for n in before.nodes if n != before.batch_host)
    with lost(scene, gone):
        wait_until(lambda: scene.node(gone).reason.startswith("srobust: stopped responding"), 60, "drained, witnessed")
        wait_until(lambda: scene.job(job).state == "PENDING", 20, "it waits")
    scene.client.resume(gone)
    after = scene.running(job, restart=1, timeout_s=60)
    assert gone in after.nodes
    scene.await_incident(job, kind="node_lost", outcome="running")
    assert not [name for name in scene.ours() if "standby" in name]
    assert "recovery.given_up" not in scene.log.read_text()


def test_node_that_comes_back_costs_nothing(scene: Scene) -> None:
    """A node is silent for a while and answers again: the seats held ahead are let go, the job never noticed."""
    scene.start(standby={"size": 1})
    job = scene.submit("-N2", "--exclusive")
    node = next(n for n in scene.watched(job).nodes if n != scene.job(job).batch_host)
    scene.cluster.freeze_slurmd(node)
    try:
        # Before Slurm gives it up, but after it noticed.
        wait_until(lambda: "NOT_RESPONDING" in scene.node(node).flags, 30, "silent")
    finally:
        scene.cluster.thaw_slurmd(node)
    wait_until(lambda: "NOT_RESPONDING" not in scene.node(node).flags, 30, "answers")
    wait_until(lambda: not [n for n in scene.ours() if "seat" in n], 20, "no seat is held")
    now = scene.job(job)
    assert (now.state, now.restart_count) == ("RUNNING", 0)
    assert not scene.node(node).drained


@pytest.mark.variant
def test_node_given_up_without_a_warning(scene: Scene) -> None:
    """A frozen node goes DOWN without having been called silent: the daemon remembers where the job ran."""
    scene.start(daemon={"idle_interval_s": 1.0})
    job = scene.submit("-N2", "--exclusive")
    before = scene.watched(job)
    frozen = next(n for n in before.nodes if n != before.batch_host)
    wait_until(lambda: '"claim":"watching"' in (scene.state_dir / "state.json").read_text(), 20, "the daemon knows it")
    scene.cluster.freeze_slurmd(frozen)
    try:
        after = scene.running(job, restart=1, timeout_s=60)
        assert frozen not in after.nodes
        wait_until(
            lambda: scene.node(frozen).reason.startswith("srobust: stopped responding"), 20, "drained, witnessed"
        )
        scene.await_incident(job, kind="node_lost", outcome="running")
        assert not scene.ours()
    finally:
        scene.cluster.kill_slurmd(frozen)
        scene.cluster.start_slurmd(frozen)
        scene.cluster.wait_ready([frozen])


def test_frozen_suspect_does_not_hold_up_its_own_eviction(scene: Scene) -> None:
    """The suspect's slurmd is frozen: it is set DOWN, the job runs elsewhere, and the node ends drained."""
    scene.start(standby={"size": 1})
    wait_until(scene.ours, 10, "a standby pool")
    job = scene.submit("-N3", "--exclusive")
    before = scene.watched(job)
    suspect = next(n for n in before.nodes if n != before.batch_host)
    scene.cluster.freeze_slurmd(suspect)
    try:
        scene.claim(job, [suspect])
        after = scene.running(job, restart=1)
        assert suspect not in after.nodes
        incident = scene.await_incident(job, outcome="resumed")
        assert "set_down" in [a.kind for a in incident["actions"]]
        wait_until(lambda: "DRAIN" in scene.node(suspect).flags, 60, f"drained\n{scene.tail()}")
        assert scene.node(suspect).reason.startswith("srobust: held up the end")
    finally:
        # A new slurmd registers at once; a thawed one only when slurmctld asks for it again.
        scene.cluster.kill_slurmd(suspect)
        scene.cluster.start_slurmd(suspect)
        scene.cluster.wait_ready([suspect])


def test_standby_that_fails_its_check_is_drained_and_replaced(scene: Scene) -> None:
    """The check runs inside the pool as soon as a node joins; the one that is held ready in the end has passed it."""
    command = ["/bin/sh", "-c", 'test "$SLURMD_NODENAME" != n4']
    scene.start(
        standby={"size": 1},
        quarantine={"recheck_command": command},
        breaker={"max_drains": 2, "max_partition_share": 0.5},
    )
    wait_until(lambda: scene.node("n4").drained, 30, "n4 is drained")
    assert scene.node("n4").reason == "srobust: failed its recheck"
    wait_until(lambda: "standby.checked: n3" in scene.log.read_text(), 40, "n3 has taken its place and is checked")
    (pool,) = [r for r in scene.ours().values() if "standby" in r.name]
    assert pool.nodes == "n3"
    # Its place is kept while the check's end settles, and nobody is checked twice: there is no event to wait for.
    time.sleep(12)
    assert [r.nodes for r in scene.ours().values() if "standby" in r.name] == ["n3"]
    assert scene.log.read_text().count("action.standby_check:") == 2
