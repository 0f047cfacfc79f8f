"""Lemons and the daemon, against a simulated Slurm: one a day, free nodes only, within the breaker; not by default."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

from slurm_robust.config.site import parse
from slurm_robust.core.model import Mode
from slurm_robust.daemon.controllers.breaker import OPEN_KEY

DAY_S = 86400.0
ACT = "lemons: {act: true}\nnodetest: {tests: []}\n"


def answering(tmp_path: Path, *nodes: str, then: str = "") -> tuple[str, ...]:
    """A program that prints a report with these lemons, and writes down how it was called."""
    rows = [{"node": node, "why": "9 failures", "failures": 9.0, "chance": 1e-9} for node in nodes]
    script = f"""
import sys, pathlib
names = sys.stdin.read()
pathlib.Path({str(tmp_path / "asked")!r}).write_text(" ".join(sys.argv[1:]) + chr(10) + names)
{then}
print({json.dumps(json.dumps({"lemons": rows}))})
"""
    return (sys.executable, "-c", script)


def world_of(tmp_path: Path, program: tuple[str, ...], site: str = ACT, mode: Mode = Mode.ACT) -> World:
    """A daemon that has run for six minutes, and asks this program."""
    world = World(tmp_path, FakeSlurm(), parse(site), mode)
    world.daemon.lemons.program = program
    return world


def ask(world: World) -> None:
    """Until the program was asked (once more) and has answered."""

    async def asking() -> None:
        lemons, before = world.daemon.lemons, world.journal.get("lemons_asked_at_s")
        for _ in range(100):
            world.slurm.pass_s(60.0)
            await world.look()
            if (task := lemons._asking) is not None:
                await asyncio.wait({task}, timeout=30)
            elif world.journal.get("lemons_asked_at_s") != before:
                return

    asyncio.run(asking())


def events(world: World, what: str) -> list[str]:
    """The audit log's lines of a kind."""
    rows = world.journal.db.execute("SELECT text FROM events WHERE what = ? ORDER BY rowid", (what,))
    return [row["text"] for row in rows]


def test_one_lemon_a_day_is_checked_and_gets_a_strike(tmp_path: Path) -> None:
    """The second one waits for the next day, and neither is given twice. The child gets all names and the journal."""
    world = world_of(tmp_path, answering(tmp_path, "n1", "n2"))
    ask(world)
    argv, *names = (tmp_path / "asked").read_text().splitlines()
    assert argv == f"--json --since=90d --journal={tmp_path} --nodes-from=-"
    assert names == list(world.slurm.state.nodes)
    world.run(120, step_s=1.0)
    assert [text.split(":")[0] for text in events(world, "lemon.quarantined")] == ["n1"]
    assert world.daemon.ledger.strikes("n1", 0.0)
    assert not world.daemon.ledger.strikes("n2", 0.0)
    for _ in range(3):
        world.slurm.pass_s(DAY_S)
        ask(world)
        world.run(120, step_s=1.0)
    assert [text.split(":")[0] for text in events(world, "lemon.quarantined")] == ["n1", "n2"]
    (strike,) = world.journal.db.execute("SELECT incident FROM strikes WHERE node = 'n1'")
    assert strike["incident"].startswith("lemon.n1.")
    world.journal.close()


def test_a_node_with_a_job_is_left_alone_until_it_is_free(tmp_path: Path) -> None:
    """No job notices."""
    world = world_of(tmp_path, answering(tmp_path, "n1"))
    world.daemon.context.config_path = "/other/robust.yaml"
    world.slurm.run_job(("n1",))
    ask(world)
    assert "--config=/other/robust.yaml" in (tmp_path / "asked").read_text().split()
    world.run(600, step_s=10.0)
    assert events(world, "lemon.found")
    assert events(world, "lemon.quarantined") == []
    world.journal.close()


@pytest.mark.parametrize(
    ("site", "mode"), [("mode: act", Mode.ACT), (ACT, Mode.OBSERVE)], ids=["by default", "in observe"]
)
def test_nothing_is_asked_where_the_site_does_not_want_it(tmp_path: Path, site: str, mode: Mode) -> None:
    """The child is not even started."""
    world = world_of(tmp_path, answering(tmp_path, "n1"), site, mode)
    world.run(1200, step_s=60.0)
    assert not (tmp_path / "asked").exists()
    world.journal.close()


def test_an_open_breaker_refuses(tmp_path: Path) -> None:
    """And nothing is written down as given."""
    world = world_of(tmp_path, answering(tmp_path, "n1"))
    world.journal.put(OPEN_KEY, "a test opened it")
    ask(world)
    world.run(600, step_s=10.0)
    assert events(world, "lemon.quarantined") == []
    assert world.journal.get("lemons_given") in ("", "{}")
    world.journal.close()


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("sys.exit('no journal')", "exited with 1: no journal"),
        ("print('hello')", "not a report of lemons"),
        ("import time; time.sleep(60)", "did not end within 0.5 s"),
        ("print('x' * 50_000_000)", "exited with"),
    ],
    ids=["fails", "prints something else", "hangs", "floods"],
)
def test_a_report_that_fails_is_an_alert(tmp_path: Path, then: str, why: str) -> None:
    """Nothing else happens, and the daemon goes on."""
    world = world_of(tmp_path, answering(tmp_path, "n1", then=then))
    world.daemon.lemons.deadline_s = 0.5 if "sleep" in then else 20.0
    ask(world)
    (text,) = events(world, "lemons.unknown")
    assert why in text
    assert events(world, "lemon.found") == []
    world.journal.close()


def test_a_report_that_cannot_be_started_is_an_alert(tmp_path: Path) -> None:
    """The program is not there."""
    world = world_of(tmp_path, ("/nonexistent/srobust",))
    ask(world)
    assert len(events(world, "lemons.unknown")) == 1
    world.journal.close()
