"""`srobust status` shows the daemon's mode, since when, and the nodes whose node watch has another one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.testing import CliRunner
from faults_world import Faults, Make
from snapshots import published

from slurm_robust.cli.main import cli
from slurm_robust.config.site import Config
from slurm_robust.core.build import build
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api.state_lines import encode
from slurm_robust.daemon.api.state_snapshot import write
from slurm_robust.marks import watch_marker
from slurm_robust.marks.claim import Claim, render
from slurm_robust.nodecheck.stages import gate


def tell(w: Faults, name: str, mode: Mode) -> str:
    """The node watch of a node tells its mode, as its child does."""
    slurm: Any = SimpleNamespace(node=w.slurm.state.nodes.get, set_node_extra=w.slurm.set_node_extra)
    return gate.tell_mode(name, Config(mode=mode), lambda _: slurm)


def status(w: Faults, folder: Path) -> str:
    """What a person reads."""
    write(folder, encode(published(w.daemon)))
    path = folder / "robust.yaml"
    path.write_text(f"daemon: {{state_dir: {folder}}}\n")
    result = CliRunner().invoke(cli, ["status", "--config", str(path)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_nodes_that_differ_are_named(fault_world: Make, tmp_path: Path) -> None:
    """In both directions; nodes that say nothing, and those that agree, are not named."""
    w = fault_world()
    for name, mode in (("n1", Mode.OBSERVE), ("n2", Mode.OBSERVE), ("n3", Mode.ACT)):
        assert tell(w, name, mode) == ""
    w.run(8)
    assert published(w.daemon)["watch_modes"] == {"act": "n3", "observe": "n[1-2]"}
    said = status(w, tmp_path)
    assert "The node watch of n[1-2] is in mode observe: see mode in robust.yaml there" in said
    assert "mode act since " in said
    assert "is in mode act" not in said
    w.mode = Mode.OBSERVE
    w.live()
    w.run(8)
    assert "The node watch of n3 is in mode act" in status(w, tmp_path)
    assert tell(w, "n3", Mode.OBSERVE) == ""
    w.run(8)
    assert "node watch" not in status(w, tmp_path)


def test_since_when_survives_a_restart(fault_world: Make) -> None:
    """Only another mode begins anew."""
    w = fault_world()
    since_s = published(w.daemon)["mode_since_s"]
    w.run(60)
    w.live()
    assert published(w.daemon)["mode_since_s"] == since_s
    w.mode = Mode.OBSERVE
    w.live()
    assert published(w.daemon)["mode_since_s"] > since_s


def test_what_is_known_or_a_person_s_is_not_written(fault_world: Make) -> None:
    """No call that changes a node where the marker stands; JSON, by which jobs are scheduled, stays as it is."""
    w = fault_world()
    nodes = w.slurm.state.nodes
    nodes["n1"] = replace(nodes["n1"], extra=watch_marker.render("act", "rack 7", build()))
    nodes["n2"] = replace(nodes["n2"], extra=json.dumps({"rack": 7}))
    before = dict(nodes)
    assert [tell(w, name, Mode.ACT) for name in ("n1", "n2")] == ["", ""]
    assert nodes == before
    assert "does not know" in tell(w, "n99", Mode.ACT)


def test_a_snapshot_of_an_older_daemon_is_shown(fault_world: Make, tmp_path: Path) -> None:
    """It has neither field."""
    w = fault_world()
    state = {k: v for k, v in published(w.daemon).items() if k not in ("mode_since_s", "watch_builds", "watch_modes")}
    write(tmp_path, encode(state))
    (tmp_path / "robust.yaml").write_text(f"daemon: {{state_dir: {tmp_path}}}\n")
    result = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "robust.yaml")])
    assert result.exit_code == 0
    assert "mode act   as of" in result.output


def test_jobs_that_keep_another_mode_are_named(fault_world: Make, tmp_path: Path) -> None:
    """A job keeps the mode in which its supervisor began; one of an older version does not say."""
    w = fault_world()
    jobs = w.slurm.state.jobs
    for mode in ("observe", "act", ""):
        number = w.slurm.run_job((f"n{len(jobs) + 1}",)).ref.job_id
        jobs[number] = replace(jobs[number], comment=render(Claim("watching", f"line-{number}", own_mode=mode)))
    w.run(8)
    shown = published(w.daemon)["jobs"]
    assert [job["mode"] for job in shown] == ["observe", "act", None]
    said = status(w, tmp_path)
    assert f"Job {shown[0]['job']} is in mode observe, in which it began" in said
    assert "watching, observes" in said
    w.mode = Mode.OBSERVE
    w.live()
    w.run(8)
    assert f"Job {shown[1]['job']} is in mode act, in which it began" in status(w, tmp_path)


def test_nodes_of_another_build_are_named(fault_world: Make, tmp_path: Path) -> None:
    """An upgrade that was left half done; a node that says none is of a version before builds."""
    w = fault_world()
    assert tell(w, "n1", Mode.ACT) == ""
    nodes = w.slurm.state.nodes
    nodes["n2"] = replace(nodes["n2"], extra=watch_marker.render("act", "", "0ld0ld00"))
    nodes["n3"] = replace(nodes["n3"], extra=watch_marker.render("act"))
    w.run(8)
    said = status(w, tmp_path)
    assert "The node watch of n2 is of build 0ld0ld00, the daemon of" in said
    assert "node watch of n1" not in said
    assert tell(w, "n2", Mode.ACT) == tell(w, "n3", Mode.ACT) == ""
    w.run(8)
    assert published(w.daemon)["watch_modes"] == {"act": "n[1-3]"}
    assert "build" not in status(w, tmp_path)
