"""Kill -9 at the stages of a save, and of a backup's way; and what the script that does it takes for right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "scripts"))

import kill_cases  # noqa: E402 (scripts are no package)
import kill_rules  # noqa: E402


@pytest.mark.parametrize(("stages", "rounds"), [("save", 3), ("transfer", 1)])
def test_kills_at_every_stage(stages: str, rounds: int) -> None:
    """A part of a lap of scripts/kill_saves.py; hundreds are its own run."""
    script = [sys.executable, str(ROOT / "scripts" / "kill_saves.py"), "--rounds", str(rounds), "--seed", "11"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*script, "--stages", stages], env=env, capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{rounds} kills" in done.stdout


def test_a_lap_has_every_victim_at_every_stage_of_a_transfer() -> None:
    """On both sides; a node is lost afterwards in many of them, and of three nodes with two backups even two are."""
    cases = kill_cases.cases(5, 40, (kill_cases.TRANSFER,))
    stages = (*kill_cases.OF_SENDER, *kill_cases.OF_RECEIVER)
    assert {(case.victim, case.point, case.on) for case in cases} == {
        (victim, point, on) for victim in kill_cases.VICTIMS for point in stages for on in ("here", "there")
    }
    assert any(case.victim == "node" and case.lost for case in cases)
    assert not any(case.victim == "node" and case.lost and case.nodes == 2 for case in cases)
    assert cases == kill_cases.cases(5, 40, (kill_cases.TRANSFER,))


def left(*, own: dict[int, set[int]], kept: dict[int, set[int]], parts: dict[int, set[int]], sealed: int = 0) -> int:
    """The newest step of two ranks."""
    found = [{rank: frozenset(steps) for rank, steps in some.items()} for some in (own, kept, parts)]
    return kill_rules.newest(kill_rules.Left(found[0], found[1], found[2], sealed), 2)


def test_the_newest_step_needs_every_rank_somewhere() -> None:
    """In its own memory, on another node, or in a file; a seal alone will do."""
    assert left(own={0: {3, 4}, 1: {3, 4}}, kept={}, parts={}) == 4
    assert left(own={0: {3, 4}}, kept={1: {2, 3}}, parts={}) == 3
    assert left(own={0: {3, 4}}, kept={1: {2, 3}}, parts={1: {4}}) == 4
    assert left(own={0: {3, 4}}, kept={0: {3, 4}}, parts={}) == 0
    assert left(own={0: {3, 4}}, kept={}, parts={}, sealed=2) == 2


def test_what_is_promised() -> None:
    """One step at most goes with a node; nothing with an agent or a persister, but both copies of the last with two."""
    case = kill_cases.Case(2, 2, "agent", "node", kill_cases.TRANSFER, "backup kept", 1)
    assert kill_rules.promised(case, 5, 0) == 4
    persister = case._replace(victim="persister")
    assert kill_rules.promised(persister, 6, 6) == kill_cases.STEPS
    assert kill_rules.promised(persister._replace(lost="there"), 6, 5) == kill_cases.STEPS
    assert kill_rules.promised(persister._replace(lost="there"), 6, 6) == 0
    assert kill_rules.promised(persister._replace(lost="there", nodes=3), 6, 6) == kill_cases.STEPS
