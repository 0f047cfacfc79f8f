"""Whether a drained node is repaired, and the next step of a try: any node, any moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.repair import RepairConfig
from slurm_robust.marks.remedy import Remedy, remedy_of
from slurm_robust.policy.cluster.repair import (
    TRIED,
    RepairStep,
    RepairTry,
    Scene,
    Site,
    next_move,
    prospect,
)
from slurm_robust.slurm.client import Node

NOW_S = 1_000_000.0
CONFIG = RepairConfig(enabled=True)
LOST = "srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00 [repair reboot]"
MEMORY = LOST.replace("reboot]", "gpu_reset]")
OUT = Node("n1", "IDLE", frozenset({"DRAIN"}), LOST, "root", boot_at_s=500)
BOTH = frozenset(Remedy)
SITE = Site(CONFIG, BOTH, frozenset({"root", "slurm"}), frozenset(), NOW_S)
TRY = RepairTry(1, "n1", Remedy.REBOOT, 1, LOST, NOW_S - 100, 500)
SCENE = Scene(CONFIG, NOW_S, reserved=True)
TOUCHING = frozenset({RepairStep.REBOOT, RepairStep.COMMAND, RepairStep.RESUME, RepairStep.DRAIN, RepairStep.HOLD})


def failed(number: int, remedy: Remedy = Remedy.REBOOT, ago_s: float = 1000) -> RepairTry:
    """An earlier try."""
    return RepairTry(number, "n1", remedy, number, LOST, NOW_S - ago_s, outcome="failed", ended_at_s=NOW_S - ago_s)


def chance(node: Node = OUT, *past: RepairTry, site: Site = SITE, since_s: float = 600) -> object:
    """The remedy, or why not."""
    found = prospect(node, LOST, NOW_S - since_s, past, site)
    return found and (found.remedy or found.why)


def test_a_node_that_we_drained_with_a_remedy_is_repaired() -> None:
    """Who drained it, and for what, stands in its reason."""
    assert chance() is Remedy.REBOOT


@pytest.mark.parametrize(
    "node",
    [
        replace(OUT, reason="bad fan"),
        replace(OUT, reason=f"{LOST} keep out"),
        replace(OUT, reason=f"bob: {LOST}"),
        replace(OUT, reason_user="bob"),
        replace(OUT, flags=frozenset()),
    ],
)
def test_a_persons_drain_is_none_of_ours(node: Node) -> None:
    """Nor is one that a person has worded anew, or ended."""
    assert chance(node) is None


@pytest.mark.parametrize(
    ("node", "site"),
    [
        (replace(OUT, state="MIXED"), SITE),
        (OUT, replace(SITE, busy=frozenset({"n1"}))),
        (replace(OUT, flags=OUT.flags | {"COMPLETING"}), SITE),
        (replace(OUT, flags=OUT.flags | {"MAINTENANCE"}), SITE),
        (replace(OUT, flags=OUT.flags | {"REBOOT_REQUESTED"}), SITE),
        (replace(OUT, flags=OUT.flags | {"NOT_RESPONDING"}), SITE),
    ],
)
def test_a_node_in_use_waits(node: Node, site: Site) -> None:
    """No waiting is hopeless."""
    found = prospect(node, LOST, NOW_S - 600, [], site)
    assert found is not None
    assert found.remedy is None
    assert not found.hopeless


def test_a_fresh_drain_waits() -> None:
    """A person may be about to look, and slurmctld may still forget it."""
    assert "less than 120 s ago" in str(chance(since_s=119))


def test_tries_count_within_the_window_only() -> None:
    """Those that were left to a person do not."""
    assert "did not help" in str(chance(OUT, failed(1), failed(2)))
    assert chance(OUT, failed(1, ago_s=8 * 86400), failed(2)) is Remedy.REBOOT
    assert chance(OUT, failed(1), replace(failed(2), outcome="left")) is Remedy.REBOOT


@pytest.mark.parametrize(
    ("available", "tried", "wanted"),
    [
        (BOTH, (), Remedy.GPU_RESET),
        (BOTH, (Remedy.GPU_RESET,), Remedy.REBOOT),
        ({Remedy.REBOOT}, (), Remedy.REBOOT),
        ({Remedy.GPU_RESET}, (Remedy.GPU_RESET,), Remedy.GPU_RESET),
        (set(), (), "its remedy, GPU reset, cannot be carried out here"),
    ],
)
def test_a_stronger_remedy_stands_in(available: set[Remedy], tried: tuple[Remedy, ...], wanted: object) -> None:
    """Where the fault's own did not help, or cannot be carried out; never a weaker one."""
    past = [failed(i, r) for i, r in enumerate(tried, 1)]
    found = prospect(replace(OUT, reason=MEMORY), MEMORY, 0.0, past, replace(SITE, available=frozenset(available)))
    assert found is not None
    assert (found.remedy or found.why) == wanted


REASONS = st.sampled_from([LOST, TRY.reason(CONFIG), f"{TRY.reason(CONFIG)} : reboot issued", "bad fan", "", MEMORY])
FLAGS = st.frozensets(st.sampled_from(["DRAIN", "REBOOT_ISSUED", "NOT_RESPONDING", "RESERVED", "COMPLETING"]))
NODES = st.builds(
    Node,
    st.just("n1"),
    st.sampled_from(["IDLE", "DOWN", "MIXED"]),
    FLAGS,
    REASONS,
    boot_at_s=st.sampled_from([0, 499, 501, 502, 999_950]),
)
TIMES = st.none() | st.just(NOW_S - 50.0)
TRIES = st.builds(
    RepairTry,
    st.just(1),
    st.just("n1"),
    st.sampled_from(Remedy),
    st.just(1),
    st.just(LOST),
    st.just(NOW_S - 100),
    st.sampled_from([0, 500]),
    *[TIMES] * 4,
    outcome=st.sampled_from(["", "passed", "failed", "left"]),
)
SCENES = st.builds(
    Scene,
    st.sampled_from([CONFIG, RepairConfig(enabled=True, command=("power",), timeout_s=10)]),
    st.just(NOW_S),
    *[st.booleans()] * 3,
    st.sampled_from(["", "running", "done", "exited with 3"]),
    st.booleans(),
)


@given(TRIES, NODES, SCENES)
def test_no_step_is_ever_taken_where_it_may_not(t: RepairTry, node: Node, scene: Scene) -> None:
    """The promises of the documentation, over everything that a try can meet."""
    step = next_move(t, node, scene).step
    if node.drained and node.reason == "bad fan":
        assert step not in TOUCHING, "a person's drain"
    if t.outcome in ("passed", "left"):
        assert step not in TOUCHING, "it is over"
    if step in (RepairStep.REBOOT, RepairStep.COMMAND, RepairStep.RESUME, RepairStep.CHECK):
        assert scene.reserved, "a node that comes back must not get a job before its check"
    if step is RepairStep.REBOOT:
        assert t.asked_at_s is None, "not twice"
        assert not node.flags & {"REBOOT_ISSUED", "NOT_RESPONDING"}
        assert not node.reason.startswith(TRY.reason(CONFIG))
        assert not scene.busy or t.acted_at_s is not None
    if step is RepairStep.COMMAND:
        assert t.acted_at_s is None, "not twice"
    if step is RepairStep.RESUME:
        assert t.done_at_s is not None
        assert not (scene.permitted and t.remedy is Remedy.GPU_RESET)
    if step is RepairStep.END:
        assert not scene.reserved or not scene.quarantined
    if step is RepairStep.END and t.outcome == "failed" and node.reason not in ("bad fan", ""):
        assert "DRAIN" in node.flags, "a node that was not repaired is out of service"


@given(TRIES, NODES, SCENES)
def test_the_same_step_comes_again_until_it_is_done(t: RepairTry, node: Node, scene: Scene) -> None:
    """A daemon that is killed between two steps, and started again, decides the same."""
    assert next_move(t, node, scene) == next_move(replace(t), replace(node), replace(scene))


def test_a_daemon_killed_before_its_call_makes_it() -> None:
    """The row says that it was about to; nothing in Slurm says that it has."""
    assert next_move(replace(TRY, acted_at_s=NOW_S - 1), OUT, SCENE).step is RepairStep.REBOOT


def test_a_node_whose_gpus_are_to_be_reset_waits_for_its_permit_to_go() -> None:
    """Its scripts would drain it again when it is resumed; after a reboot they see a new boot, and may."""
    done = replace(TRY, drained_as=MEMORY, remedy=Remedy.GPU_RESET, done_at_s=NOW_S - 1)
    node, permitted = replace(OUT, reason=MEMORY), replace(SCENE, permitted=True)
    assert next_move(done, node, permitted).step is RepairStep.WAIT
    assert next_move(done, node, SCENE).step is RepairStep.RESUME
    assert next_move(replace(done, remedy=Remedy.REBOOT), node, permitted).step is RepairStep.RESUME


def test_a_command_whose_daemon_was_killed_is_not_run_again() -> None:
    """Nobody knows how far it came: the full check tells."""
    scene = replace(SCENE, config=RepairConfig(enabled=True, command=("power",)))
    assert next_move(TRY, OUT, scene).step is RepairStep.COMMAND
    assert next_move(replace(TRY, acted_at_s=NOW_S - 1), OUT, scene).step is RepairStep.DONE


@pytest.mark.parametrize("boot_at_s", [499, 501, 505])
def test_the_jitter_of_slurmds_clock_is_no_boot(boot_at_s: int) -> None:
    """It computes the time of its boot anew each time."""
    asked = replace(TRY, acted_at_s=NOW_S - 10, asked_at_s=NOW_S - 10)
    reason = f"{TRY.reason(CONFIG)} : reboot issued"
    node = replace(OUT, reason=reason, boot_at_s=boot_at_s)
    assert next_move(asked, node, SCENE).step is RepairStep.WAIT
    assert next_move(asked, replace(node, boot_at_s=999_995), SCENE).step is RepairStep.DONE


@given(st.text(max_size=300), st.sampled_from(Remedy))
def test_reasons_stay_short_and_keep_their_remedy(evidence: str, remedy: Remedy) -> None:
    """However often it was tried: the first evidence, the last try, the remedy that the fault asks for."""
    drained_as = f"srobust: {evidence} [repair gpu_reset]"
    for nth in (1, 2):
        t = RepairTry(1, "n1", remedy, nth, drained_as, 0.0, why="not back after 30 min")
        drained_as = t.failed_reason(CONFIG)
        assert len(drained_as) <= 200
        assert drained_as.count(TRIED) <= max(1, evidence.count(TRIED))
        assert remedy_of(drained_as) is Remedy.GPU_RESET
        assert drained_as.startswith("srobust:")
