"""The daemon tells people: from the audit log to a real server, over kills of the process and restarts of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm
from snapshots import published
from webhook_server import Hook, serving

from slurm_robust.config.site import Config, parse
from slurm_robust.daemon import log_alerts
from slurm_robust.daemon.notifier import KEY, Notifier

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A server."""
    with serving() as made:
        yield made


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock here runs 25 times as fast as the real process: on a busy machine its start would look like a hang."""
    monkeypatch.setattr("slurm_robust.daemon.notifier.ANSWER_S", float("inf"))


def config(hook: Hook) -> Config:
    """One target."""
    return parse(f"cluster: main\nnotify: {{targets: [{{name: hook, kind: webhook, url: '{hook.url}'}}]}}")


async def until(world: World, what: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Let the daemon's clock pass with the notifier's ticks until something is so."""
    for _ in range(round(seconds / 0.02)):
        if what():
            return
        world.slurm.pass_s(0.5)
        await world.daemon.notifier.tick()
        await asyncio.sleep(0.02)
    raise AssertionError(f"not in {seconds} s: {world.daemon.notifier.shown()}")


async def later(world: World, seconds: float) -> None:
    """Let so much of the daemon's time pass, with a tick every ten seconds."""
    for _ in range(round(seconds / 10)):
        world.slurm.pass_s(10)
        await world.daemon.notifier.tick()
        await asyncio.sleep(0.02)


def test_a_drain_is_told_and_nothing_is_lost(tmp_path: Path, hook: Hook) -> None:
    """A drain; a server that fails; a killed process; a new daemon: each thing is told, once."""
    world = World(tmp_path, FakeSlurm(), config(hook))
    world.run(3)

    async def story() -> None:
        notifier = world.daemon.notifier
        await notifier.tick()
        world.journal.event(world.slurm.now_s, "warning", "node.drained", "n5: srobust: XID 79")
        await until(world, lambda: len(hook.got) == 1)
        hook.answers = [(503, {}, "no"), (200, {}, "ok")]
        world.journal.event(world.slurm.now_s, "warning", "nodes.storm", "3 of 6 nodes do not respond at once")
        await until(world, lambda: len(hook.got) == 3)
        await until(world, lambda: notifier.shown()[0]["sent"] == 2)
        assert hook.got[1]["id"] == hook.got[2]["id"]
        assert notifier._process is not None
        notifier._process.kill()
        world.journal.event(world.slurm.now_s, "warning", "recovery.given_up", "7.r0.5.i: it was requeued by somebody")
        await until(world, lambda: len(hook.got) == 4)
        # The next daemon goes on with what this one has read, and with what came while there was none.
        await until(world, lambda: notifier.shown()[0]["sent"] == 3)
        await notifier.close()
        world.journal.event(world.slurm.now_s, "info", "incident.closed", "8.r0.5.i: stopped: its own error")
        world.live()
        await until(world, lambda: len(hook.got) == 5)
        await until(world, lambda: world.daemon.notifier.shown()[0]["waiting"] == 0)
        await world.daemon.notifier.close()

    asyncio.run(story())
    shown = published(world.daemon)["notify"][0]
    assert (shown["sent"], shown["failed"], shown["given_up"], shown["waiting"]) == (4, 1, 0, 0)
    subjects = [body["subject"] for body in hook.got]
    assert subjects[0] == "[srobust/main] warning: Node n5 is out of service: XID 79"
    assert subjects[3] == "[srobust/main] warning: Job 7 was not brought back: it was requeued by somebody"
    assert subjects[4] == "[srobust/main] warning: Job 8 had a run that ended and is not started again: its own error"
    kept = json.loads(world.journal.get(KEY))
    assert "verysecret" not in json.dumps(kept)
    world.journal.close()


def test_a_second_drain_for_another_reason_is_told(tmp_path: Path, hook: Hook) -> None:
    """Within the hour, too; the same reason seen by another job is a repetition, which is counted."""
    world = World(tmp_path, FakeSlurm(), config(hook))
    world.run(3)

    def drained(reason: str) -> None:
        world.journal.event(world.slurm.now_s, "warning", "node.drained", f"n5: srobust: {reason}")

    async def story() -> None:
        await world.daemon.notifier.tick()
        drained("XID 79 (GPU has fallen off the bus) on GPU 3 (seen as job 7 ended) [repair reboot]")
        await until(world, lambda: len(hook.got) == 1)
        drained("/scratch is not mounted")
        await until(world, lambda: len(hook.got) == 2)
        drained("XID 79 (GPU has fallen off the bus) on GPU 3 (since job 8)")
        drained("XID 79 (GPU has fallen off the bus) on GPU 4")
        await until(world, lambda: len(hook.got) == 3)
        await world.daemon.notifier.close()

    asyncio.run(story())
    subjects = [body["subject"].partition("service: ")[2] for body in hook.got]
    assert subjects[1:] == ["/scratch is not mounted", "XID 79 (GPU has fallen off the bus) on GPU 4"]
    world.journal.close()


def test_nothing_is_started_where_nobody_is_to_be_told(tmp_path: Path) -> None:
    """No process, no key in the journal."""
    world = World(tmp_path, FakeSlurm(), Config())
    asyncio.run(world.daemon.notifier.tick())
    assert world.daemon.notifier._process is None
    assert world.journal.get(KEY) == ""
    world.journal.close()


def test_a_process_that_hangs_is_started_again(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped: its message is handed over again."""
    monkeypatch.setattr("slurm_robust.daemon.notifier.ANSWER_S", 20.0)
    world = World(tmp_path, FakeSlurm(), config(hook))

    async def story() -> None:
        notifier = world.daemon.notifier
        await notifier.tick()
        process = notifier._process
        assert process is not None
        process.send_signal(19)  # SIGSTOP
        world.journal.event(world.slurm.now_s, "warning", "node.drained", "n5: srobust: XID 79")
        await until(world, lambda: notifier._process not in (None, process))
        monkeypatch.setattr("slurm_robust.daemon.notifier.ANSWER_S", float("inf"))
        await until(world, lambda: len(hook.got) == 1)
        await until(world, lambda: notifier.shown()[0]["sent"] == 1)
        await notifier.close()

    asyncio.run(story())
    assert "hangs" in " ".join(r["text"] for r in world.journal.db.execute("SELECT text FROM events"))
    world.journal.close()


def test_what_lasts_is_told_when_it_has_lasted(tmp_path: Path, hook: Hook) -> None:
    """A trouble of a minute, and an open breaker; a short one not. A full disk does not keep them from being told."""
    world = World(tmp_path, FakeSlurm(), config(hook))
    notifier = Notifier(world.daemon.context, lambda: "9 nodes would be out")
    context = world.daemon.context
    assert [n.event for n in notifier._lasting(world.slurm.now_s)] == ["breaker"]
    context.trouble("poll", "the daemon cannot ask Slurm, and does nothing until it can (no): scontrol ping")
    assert notifier._lasting(world.slurm.now_s) == []
    world.slurm.pass_s(30)
    context.trouble("short", "x: y")
    assert notifier._lasting(world.slurm.now_s) == []
    world.slurm.pass_s(40)
    found = {n.key: n for n in notifier._lasting(world.slurm.now_s)}
    assert set(found) == {"breaker", "trouble poll"}
    assert found["trouble poll"].command == "scontrol ping"
    assert found["trouble poll"].happened == "the daemon cannot ask Slurm, and does nothing until it can (no)"
    world.journal.close()


def test_a_full_disk_is_one_message_and_its_end_is_another(tmp_path: Path, hook: Hook) -> None:
    """Whatever cannot be written because of it; when there is room again, no further alarm, but an all-clear."""
    world = World(tmp_path, FakeSlurm(), config(hook))
    world.run(3)
    context = world.daemon.context

    async def story() -> None:
        await world.daemon.notifier.tick()
        context.trouble("state", "the folder /s cannot be written (No space left on device): df -h /s")
        context.trouble("poll", "the journal /s/j cannot be written (database or disk is full): df -h /s")
        await later(world, 70)
        await until(world, lambda: len(hook.got) == 1)
        context.trouble(
            "records", "recording fails (OperationalError: database or disk is full): journalctl -u srobustd"
        )
        context.trouble("state", "")
        await later(world, 90)
        for what in ("poll", "records"):
            context.trouble(what, "")
        await until(world, lambda: len(hook.got) == 2)
        await later(world, 180)
        await world.daemon.notifier.close()

    asyncio.run(story())
    first, last = hook.got
    assert (
        "critical: the folder /s cannot be written" in first["subject"] or "critical: the journal" in first["subject"]
    )
    assert last["subject"].startswith("[srobust/main] info: It is over: ")
    world.journal.close()


def test_a_long_journal_is_not_told_from_its_beginning(tmp_path: Path, hook: Hook) -> None:
    """A site that adds its first target is told what comes from then on."""
    world = World(tmp_path, FakeSlurm(), config(hook))
    for number in range(9):
        world.journal.event(1.0, "warning", "node.drained", f"n{number}: srobust: XID 79")
    assert world.daemon.notifier._logged() == []
    world.journal.event(1.0, "warning", "node.drained", "n5: srobust: XID 79")
    assert [n.node for n in world.daemon.notifier._logged()] == ["n5"]
    world.journal.close()


def test_every_line_that_people_are_told_of_is_written_somewhere() -> None:
    """A renamed event would be told to nobody."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "slurm_robust" / "daemon" / "controllers").rglob("*.py"))
    text += "".join(
        (ROOT / "slurm_robust" / "daemon" / f"{name}.py").read_text("utf-8") for name in ("context", "lease")
    )
    policy = "".join(path.read_text("utf-8") for path in (ROOT / "slurm_robust" / "policy" / "cluster").glob("*.py"))
    for what in set(log_alerts._LINES) - {"lemon"}:
        first, _, outcome = what.partition(".")
        assert f'"{what}"' in text or (first == "recovery" and f'"{outcome}"' in policy + text), what
    assert log_alerts.alert_of(1.0, "incident.closed", "8.r0.5.i: step 30 reached") is None
    assert log_alerts.alert_of(1.0, "incident.closed", "8.r0.5.i: superseded: by : stopped: x") is None
    assert log_alerts.alert_of(1.0, "node.back", "n1 is back in service") is None
    lemon = log_alerts.alert_of(1.0, "lemon.found", "n1: 5 failures in 30 days, 1 expected")
    assert lemon is not None
    assert (lemon.event, lemon.node) == ("lemon", "n1")
