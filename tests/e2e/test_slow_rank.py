"""A real rank on a real Slurm that does a fifth more work than its peers is named in the story, and nothing is done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Submit  # type: ignore[import-not-found]
from helpers import quick_torch

from slurm_robust.cli.commands.localize import command
from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]
PROGRAM = Path(__file__).with_name("slow_rank.py")
ROOT = PROGRAM.parents[2]


def test_a_slow_rank_is_announced_and_left_alone(cluster: Cluster, submit: Submit) -> None:
    """Three ranks over gloo, one slower by a fifth: told once, its saved times say the same; the node is untouched."""
    dev = cluster(nodes=4, standby=0, supervise={"slowness_interval_s": 6.0})
    program = f"env PYTHONPATH={quick_torch(ROOT, *sys.path[1:])} {sys.executable} {PROGRAM} 2 20000"
    job = submit(dev, nodes=3, command=f"srobust run {program} #")
    told = job.hears("slow", timeout_s=120)
    assert told["nodes"] == [job.rank_node(2)], job.everything()
    assert "rank 2 on" in told["text"]
    assert "nothing is done" in told["text"]
    saved = job.story_folder / told["timings"]
    done = CliRunner().invoke(command, ["--timings", str(saved), "--json"])
    assert done.exit_code == 0
    again = json.loads(done.stdout)
    assert [(s["node"], s["ranks"]) for s in again["suspects"]] == [(job.rank_node(2), [2])]
    assert not again["problems"]
    for kind in ("suspected", "decided", "claimed", "relaunched", "stopped"):
        assert job.told(kind) == [], job.everything()
    assert all(not n.drained for n in job.client.nodes())
    shown = dev.run(
        ["srobust", "stacks", job.id, "--rounds", "3", "--every", "0.5", "--json", "--save", f"{job.folder}/rounds"]
    )
    rounds = json.loads(shown.stdout)
    assert sorted(rounds["nodes"]) == sorted(job.job().nodes)
    assert rounds["verdict"]["conclusion"] in ("none", "culprit", "undetermined"), "a fifth shows in few rounds"
    assert len(list((job.folder / "rounds").glob("stacks-*"))) == 3
    dev.run(["scancel", job.id])
    job.ends()
