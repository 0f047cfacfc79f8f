"""The actor is the only part of the daemon that changes Slurm, and the journal does not grow with what it repeats."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World
from fake_slurm import FakeSlurm

import slurm_robust
from slurm_robust.config.site import parse
from slurm_robust.daemon.actor import STANDING
from slurm_robust.slurm.client import SlurmClient

DAEMON = Path(slurm_robust.__file__).parent / "daemon"
READING = {"nodes", "node", "jobs", "job", "job_gpus", "past_job", "reservations", "cluster_name", "settings"}
READING |= {"past_runs", "node_listing", "nodes_named", "jobs_named", "unread", "clock_ahead_s"}
CHANGING = {name for name in vars(SlurmClient) if not name.startswith("_")} - READING


def uses_of_a_client(path: Path) -> set[str]:
    """Methods that a module takes from something called `client`, `.client`, or from what it named after that."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {"client"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "client":
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id in names)
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "client")
        )
    }


def test_only_the_actor_changes_slurm() -> None:
    """Every other module of the daemon calls what reads, and nothing else; the actor has a use for the rest."""
    assert {"drain", "update_job", "submit", "set_node_comment", "create_reservation"} <= CHANGING
    lease = uses_of_a_client(DAEMON / "lease.py")
    assert lease & CHANGING == {"set_node_comment"}, "its marker decides whether the actor may act at all"
    for path in DAEMON.rglob("*.py"):
        if path.name not in ("actor.py", "lease.py"):
            assert uses_of_a_client(path) <= READING, path.name
    assert uses_of_a_client(DAEMON / "actor.py") & CHANGING == CHANGING - {"signal"}


def test_everything_that_is_done_stands_in_the_journal(tmp_path: Path) -> None:
    """Permits, pools, their checks and orphans, too; what is repeated for ever has one row for each key."""
    slurm = FakeSlurm()
    world = World(tmp_path, slurm, parse("standby: {size: 2, duration_days: 1, check_max_age_h: 1}"))
    slurm.state.nodes["n3"] = replace(slurm.state.nodes["n3"], comment="rack 7")
    slurm.create_reservation("srobust-seat-99", "n1", ("ann",), 10, ())
    world.run(60)
    world.run(86400, step_s=300.0)
    rows = world.journal.db.execute("SELECT incident, kind, target, done_at_s FROM actions").fetchall()
    assert {"drain_permit", "keep_standby", "standby_check", "test_pair", "delete_orphan"} == {
        row["kind"] for row in rows
    }
    repeated = [row["incident"] for row in rows if row["kind"] in STANDING]
    assert len(repeated) == len(set(repeated)) <= 1 + 1 + len(slurm.state.nodes), (
        "permits, a pool, checks of its members"
    )
    assert slurm.acts.count("submit") > 20
    done = {row["kind"] for row in rows if row["done_at_s"]}
    assert {"drain_permit", "keep_standby"} <= done
    world.journal.close()


@pytest.mark.parametrize("kind", STANDING)
def test_what_is_repeated_does_not_count_for_the_crash_point(kind: str, tmp_path: Path) -> None:
    """The n-th action of a drill is one of a recovery; by its kind it can be chosen all the same."""
    world = World(tmp_path, FakeSlurm(), parse(""))
    crash = world.daemon.actor.crash
    crash.after(str(kind.value))  # type: ignore[attr-defined]
    assert crash.count == 0
    crash.after("drain")
    assert crash.count == 1
    world.journal.close()
