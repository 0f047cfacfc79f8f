"""Repairs of drained nodes by the daemon, against a simulated Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import Dies, World
from fake_slurm import FakeSlurm
from snapshots import published

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.store.repair_ledger import RepairLedger
from slurm_robust.marks.fault_marker import FaultMarker, render
from slurm_robust.policy.cluster.repair import RepairTry

LOST = "srobust: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00 [repair reboot]"
MEMORY = "srobust: XID 95 (uncontained memory error) on GPU 0000:9b:00 [repair gpu_reset]"
ON = "enabled: true, wait_s: 10, timeout_s: 600"
Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes worlds of six nodes."""
    made: list[World] = []

    def one(repair: str = ON, slurm: FakeSlurm | None = None, mode: Mode = Mode.ACT, more: str = "") -> World:
        config = parse(f"repair: {{{repair}}}\nbreaker: {{max_partition_share: 1.0}}\n{more}")
        made.append(World(tmp_path / str(len(made)), slurm or FakeSlurm(), config, mode))
        made[-1].run(3)
        return made[-1]

    yield one
    for world in made:
        world.journal.close()


def boots(world: World, seconds: float = 120, after_s: float = 20.0) -> None:
    """Let time pass, in which each node that is rebooted comes back after a while; never are two repaired at once."""
    since: dict[str, float] = {}
    for _ in range(int(seconds)):
        world.run(1.0)
        assert len(RepairLedger(world.journal).open()) <= 1
        for node in list(world.slurm.state.nodes.values()):
            rebooting = "REBOOT_ISSUED" in node.flags
            if rebooting and world.slurm.now_s - since.setdefault(node.name, world.slurm.now_s) >= after_s:
                world.slurm.booted(node.name)
                del since[node.name]


def told(world: World, what: str) -> list[str]:
    """The lines of this kind in the daemon's log."""
    return [r["text"] for r in world.journal.db.execute("SELECT text FROM events WHERE what = ?", (what,))]


def tries(world: World, node: str = "n2") -> list[RepairTry]:
    """Of one node."""
    return RepairLedger(world.journal).of(node)


def test_a_rebooted_node_is_checked_and_comes_back(make: Make) -> None:
    """Held first, rebooted once, checked in its quarantine, back without a strike; every step is in the journal."""
    world = make()
    world.slurm.drain("n2", LOST)
    boots(world)
    node, acts = world.slurm.state.nodes["n2"], [a for a in world.slurm.acts if not a.startswith("comment")]
    assert node.usable
    wanted = ["drain n2", "create srobust-quarantine-n2", "reboot n2", "resume n2", "submit"]
    assert acts == [*wanted, "delete srobust-quarantine-n2"]
    (t,) = tries(world)
    assert (t.outcome, t.nth, bool(t.ended_at_s)) == ("passed", 1, True)
    kinds = [a.kind for a in world.journal.actions(t.key)]
    assert kinds == ["quarantine", "reboot", "resume", "recheck", "release_quarantine"]
    assert all(a.done_at_s for a in world.journal.actions(t.key))
    assert not world.journal.db.execute("SELECT count(*) FROM strikes").fetchone()[0]
    assert told(world, "repairs.passed") == ["n2, try 1 of 2: reboot: passed its full check; back in service"]


def test_a_node_is_not_repaired_while_its_job_has_not_left_it_for_good(make: Make) -> None:
    """Recovery and repair would drain and resume it in turn."""
    world = make(more="daemon: {protect: all}\n")
    job = world.slurm.run_job(("n1", "n2", "n3", "n4", "n5", "n6"))
    marker = FaultMarker(int(world.slurm.now_s), "xid", (), "XID 95 on GPU 0", "gpu_reset")
    world.slurm.state.nodes["n2"] = replace(world.slurm.state.nodes["n2"], extra=render(marker))
    world.run(60)
    assert world.slurm.state.nodes["n2"].drained
    assert world.slurm.acts.count("drain n2") == 1
    assert tries(world) == []
    world.slurm.cancel(job.ref)
    boots(world, 100)
    assert [t.outcome for t in tries(world)] == ["passed"]


def test_a_lost_journal_does_not_begin_the_tries_anew(make: Make) -> None:
    """The node's reason says how many there were, and Slurm when it was drained."""
    slurm = FakeSlurm(recheck_exit="1:0")
    slurm.verdict = "srobust-check: unfit: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00 [repair reboot]"
    slow = "enabled: true, wait_s: 60, timeout_s: 600"
    world = make(slow, slurm=slurm)
    slurm.drain("n2", LOST)
    boots(world, 110)
    assert slurm.acts.count("reboot n2") == 1
    assert "tried: reboot, 1 of 2" in slurm.state.nodes["n2"].reason
    second = make(slow, slurm=slurm)
    boots(second, 400)
    assert slurm.acts.count("reboot n2") == 2
    third = make(slow, slurm=slurm)
    boots(third, 200)
    assert slurm.acts.count("reboot n2") == 2
    (last,) = told(third, "repairs.given_up")
    assert "2 repairs within 7 days did not help" in last


def test_after_a_lost_journal_a_fresh_drain_waits_as_long_as_ever(make: Make) -> None:
    """It is as old as its reason."""
    slurm = FakeSlurm()
    slurm.drain("n2", LOST)
    world = make("enabled: true, wait_s: 60", slurm=slurm)
    world.run(50)
    assert "reboot n2" not in slurm.acts
    world.run(30)
    assert "reboot n2" in slurm.acts


@pytest.mark.parametrize("command", ["", ", command: [/bin/true]"])
def test_a_suspended_job_keeps_its_node(make: Make, command: str) -> None:
    """Its processes are still there."""
    world = make(f"{ON}{command}")
    job = world.slurm.run_job(("n2",))
    world.slurm.state.jobs[job.ref.job_id] = replace(job, state="SUSPENDED")
    world.slurm.drain("n2", LOST)
    world.run(60)
    assert not [a for a in world.slurm.acts if a.startswith(("reboot", "resume", "create"))]


def test_a_node_whose_gpus_were_not_reset_stays_held_without_a_daemon(make: Make) -> None:
    """It has to be resumed for the job that resets them; if the daemon dies right then, jobs are kept off for a day."""
    world = make()
    world.slurm.drain("n2", MEMORY)
    while world.slurm.state.nodes["n2"].drained:
        world.run(0.5)
    held = world.slurm.state.reservations["srobust-quarantine-n2"]
    assert held.end_at_s - world.slurm.now_s > 23 * 3600
    boots(world, 60)
    assert not world.slurm.state.reservations


def test_off_by_default(make: Make) -> None:
    """Nothing is repaired and nothing is said."""
    world = make("wait_s: 10")
    world.slurm.drain("n2", LOST)
    boots(world)
    assert world.slurm.state.nodes["n2"].reason == LOST
    assert not list(world.journal.db.execute("SELECT what FROM events WHERE what LIKE 'repair%'"))


def test_a_repair_that_does_not_help_is_tried_so_often_and_then_left_to_a_person(make: Make) -> None:
    """Drained again each time, with the evidence and the count; one alert at the end."""
    slurm = FakeSlurm(recheck_exit="1:0")
    slurm.verdict = "srobust-check: unfit: XID 79 (GPU has fallen off the bus) on GPU 0000:9b:00 [repair reboot]"
    world = make(slurm=slurm)
    slurm.drain("n2", LOST)
    boots(world, 400)
    assert slurm.acts.count("reboot n2") == 2
    reason = slurm.state.nodes["n2"].reason
    assert reason == LOST.replace(" [repair", "; tried: reboot, 2 of 2 [repair")
    assert [t.outcome for t in tries(world)] == ["failed", "failed"]
    (last,) = told(world, "repairs.given_up")
    assert "2 repairs within 7 days did not help; a person has to look" in last
    assert not slurm.state.reservations
    world.live()
    boots(world, 60)
    assert len(told(world, "repairs.given_up")) == 1


@pytest.mark.parametrize("returned", [False, True])
def test_a_node_that_does_not_come_back_is_drained_again(make: Make, returned: bool) -> None:
    """Slurm takes its drain away when its time is over, and may give it back: it stays held until it is drained."""
    world = make(f"{ON}, max_tries: 1")
    world.slurm.drain("n2", LOST)
    world.run(60)
    world.slurm.reboot_timed_out("n2")
    if returned:  # ReturnToService=2
        world.slurm.state.nodes["n2"] = replace(world.slurm.state.nodes["n2"], state="IDLE", reason="")
    held = "srobust-quarantine-n2"
    for _ in range(700):
        world.run(1.0)
        assert "DRAIN" in world.slurm.state.nodes["n2"].flags or held in world.slurm.state.reservations
    node = world.slurm.state.nodes["n2"]
    why = "Slurm gave it back without a reboot" if returned else "not back after 10 min"
    assert node.reason == LOST.replace(" [repair", f"; tried: reboot, 1 of 1 ({why}) [repair")
    assert "DRAIN" in node.flags
    assert held not in world.slurm.state.reservations
    assert world.slurm.acts.count("reboot n2") == 1


@pytest.mark.parametrize("reason", ["bad fan", "srobust: mine now, bob", LOST.replace(" [repair reboot]", "")])
def test_what_a_person_drained_is_never_touched(make: Make, reason: str) -> None:
    """Neither a person's drain, nor one of ours whose reason a person changed."""
    world = make()
    world.slurm.drain("n3", reason)
    world.slurm.drain("n2", LOST)
    world.run(5)
    world.slurm.drain("n2", reason)
    boots(world, 200)
    assert not [a for a in world.slurm.acts if a.startswith(("reboot", "resume", "create"))]
    assert world.slurm.state.nodes["n2"].reason == reason


@pytest.mark.parametrize("when_s", [12.0, 14.0, 20.0, 40.0])
def test_a_person_who_takes_the_node_over_meanwhile_keeps_it(make: Make, when_s: float) -> None:
    """At any moment: the reservation goes, the reason stays, nothing else is done."""
    world = make()
    world.slurm.drain("n2", LOST)
    world.run(when_s)
    world.slurm.drain("n2", "bob works here")
    world.slurm.booted("n2")
    after = len(world.slurm.acts)
    boots(world, 200)
    assert world.slurm.state.nodes["n2"].reason == "bob works here"
    assert not [a for a in world.slurm.acts[after:] if a.startswith(("reboot", "resume n2", "drain"))]
    assert not world.slurm.state.reservations
    assert [t.outcome for t in tries(world)] in (["left"], [])


def test_a_busy_node_waits(make: Make) -> None:
    """A job of others that still runs on the drained node is not touched."""
    world = make()
    job = world.slurm.run_job(("n2",))
    world.slurm.drain("n2", LOST)
    boots(world, 60)
    assert not tries(world)
    world.slurm.state.jobs[job.ref.job_id] = replace(job, state="COMPLETED", nodes=())
    boots(world, 60)
    assert [t.outcome for t in tries(world)] == ["passed"]


def test_one_after_the_other(make: Make) -> None:
    """Of many drained nodes only so many are repaired at once; the oldest first."""
    world = make()
    for name in ("n4", "n2", "n3"):
        world.slurm.drain(name, LOST)
        world.run(4)
    boots(world, 300)
    reboots = [a for a in world.slurm.acts if a.startswith("reboot")]
    assert reboots == ["reboot n4", "reboot n2", "reboot n3"]


def test_an_open_breaker_begins_nothing(make: Make) -> None:
    """A person decides first."""
    world = make(more="")
    world.journal.put("breaker_open", "too many")
    world.slurm.drain("n2", LOST)
    boots(world)
    assert not tries(world)


def test_observing_only_says_so_once(make: Make) -> None:
    """Words, and not even a permit."""
    world = make(mode=Mode.OBSERVE)
    world.slurm.drain("n2", LOST)
    boots(world)
    assert told(world, "repairs.observed") == [f"observe: would repair n2 (reboot): {LOST}"]
    assert world.slurm.acts == ["drain n2"]


def test_a_fault_without_a_remedy_is_said_once(make: Make) -> None:
    """NVIDIA wants the board repaired: nothing is tried."""
    world = make()
    world.slurm.drain("n2", "srobust: XID 64 (memory row could not be remapped or page retired) on GPU 0000:9b:00")
    boots(world)
    assert not tries(world)
    assert len(told(world, "repairs.given_up")) == 1


def test_without_a_reboot_program_no_reboot(make: Make) -> None:
    """It is said at the start, and at the node."""
    slurm = FakeSlurm()
    slurm.reboot_program = "(null)"
    world = make(slurm=slurm)
    slurm.drain("n2", LOST)
    boots(world)
    assert "reboot n2" not in slurm.acts
    assert told(world, "repairs.unavailable") == ["reboot is not available: slurm.conf has no RebootProgram"]
    assert "cannot be carried out here" in told(world, "repairs.given_up")[0]


def test_a_gpu_reset_is_done_by_the_check_itself_without_a_permit(make: Make) -> None:
    """The node's scripts still see the fault when it is resumed: they may not drain it until the check has passed."""
    world = make()
    world.slurm.drain("n2", MEMORY)
    permits: dict[str, bool] = {}
    for _ in range(60):
        before = len(world.slurm.acts)
        world.run(1.0)
        for act in world.slurm.acts[before:]:
            if act in ("resume n2", "submit"):
                permits[act] = "until=" in world.slurm.state.nodes["n2"].comment
    assert permits == {"resume n2": False, "submit": False}
    assert "nvidia-smi --gpu-reset" in world.slurm.scripts[0]
    assert "reboot n2" not in world.slurm.acts
    assert world.slurm.state.nodes["n2"].usable
    assert "until=" in world.slurm.state.nodes["n2"].comment


def test_a_gpu_reset_that_did_not_help_is_followed_by_a_reboot(make: Make) -> None:
    """A reboot does what a reset does, and more."""
    slurm = FakeSlurm(recheck_exit="1:0")
    slurm.verdict = f"srobust-check: unfit: {MEMORY.removeprefix('srobust: ')}"
    world = make(slurm=slurm)
    slurm.drain("n2", MEMORY)
    boots(world, 300)
    assert [t.remedy.value for t in tries(world)] == ["gpu_reset", "reboot"]
    assert "tried: reboot, 2 of 2 [repair gpu_reset]" in slurm.state.nodes["n2"].reason


def test_a_check_that_cannot_tell_does_not_bring_the_node_back(make: Make) -> None:
    """A suspect comes back after five of them; a node that had a fault does not."""
    world = make(f"{ON}, max_tries: 1", slurm=FakeSlurm(recheck_exit="3:0"))
    world.slurm.drain("n2", LOST)
    boots(world, 900)
    assert "could not be checked" in world.slurm.state.nodes["n2"].reason
    assert "DRAIN" in world.slurm.state.nodes["n2"].flags


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", ("passed", "passed its full check")),
        ("echo no such outlet; exit 3", ("failed", "power exited with 3: no such outlet")),
        ("sleep 100", ("failed", "power did not end within 0.7 s")),
    ],
)
def test_the_sites_own_command_does_it(make: Make, tmp_path: Path, script: str, ended: tuple[str, str]) -> None:
    """It is given node and remedy; exit 0 leads to the check, everything else to a drain with its last words."""
    power = tmp_path / "power"
    power.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n{script}\n')
    power.chmod(0o755)
    world = make(f"enabled: true, wait_s: 5, max_tries: 1, command: [{power}, '--node=%n', '%r'], timeout_s: 0.7")
    world.slurm.drain("n2", LOST)

    async def passing() -> None:
        for _ in range(500):
            world.slurm.pass_s(0.1)
            await world.look()
            await asyncio.sleep(0.01)  # the command runs in this machine's time
            if tries(world) and tries(world)[0].ended_at_s:
                return

    asyncio.run(passing())
    assert (tmp_path / "called").read_text() == "--node=n2 reboot\n"
    (t,) = tries(world)
    assert (t.outcome, t.why) == ended
    assert world.slurm.state.nodes["n2"].usable == (t.outcome == "passed")
    assert "reboot n2" not in world.slurm.acts


@pytest.mark.parametrize("actions", range(1, 10))
@pytest.mark.parametrize("reason", [LOST, MEMORY])
def test_a_daemon_killed_after_any_action_takes_the_missing_step(make: Make, reason: str, actions: int) -> None:
    """The node comes back, and is rebooted, or checked with its reset, once."""
    world = make()
    world.slurm.drain("n2", reason)
    world.run(5)
    world.daemon.actor.crash = Dies(actions)
    boots(world, 200)
    assert world.slurm.state.nodes["n2"].usable
    assert world.slurm.acts.count("reboot n2") == (reason == LOST)
    assert world.slurm.acts.count("submit") == 1
    assert not world.slurm.state.reservations
    assert [t.outcome for t in tries(world)] == ["passed"]


def test_a_reboot_that_slurmctld_forgot_is_not_asked_for_twice(make: Make) -> None:
    """The node may be rebooting all the same: the try fails after its time, and another one follows."""
    world = make()
    world.slurm.drain("n2", LOST)
    world.run(5)
    world.slurm.save()
    while "reboot n2" not in world.slurm.acts:
        world.run(0.5)
    world.slurm.forget()
    world.run(300, step_s=1.0)
    assert world.slurm.acts.count("reboot n2") == 1
    assert published(world.daemon)["nodes"][1]["repair"]["doing"] == "rebooting"
    boots(world, 600)
    assert [t.outcome for t in tries(world)] == ["failed", "passed"]
