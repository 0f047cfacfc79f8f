"""benchmarks/restart.py ends, whatever becomes of a road: one that takes another way fails alone, and leaves no job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import roads
from training import Training


class Cluster:
    """A cluster whose daemon knows no incident of the job, because the job has restarted in place."""

    def __init__(self, folder: Path) -> None:
        self.layout = self
        self.work = self.log = folder
        self.env: dict[str, str] = {}
        self.jobs = ["1", "2"]
        self.spec = roads.Spec(nodes=1, standby=0)

    def run(self, words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """Answer as Slurm and srobust would."""
        said = ""
        if words[0] == "srobust":
            said = json.dumps([{"job": "9", "actions": [], "times": {}}])
        elif words[0] == "sbatch":
            said = self.jobs[0]
        elif words[:2] == ["squeue", "-h"]:
            said = "\n".join(self.jobs if "-j" not in words else [])
        elif words[0] == "scancel":
            self.jobs = [job for job in self.jobs if job not in words]
        elif words[0] == "sinfo":
            said = "idle"
        return subprocess.CompletedProcess(words, 0, said, "")


def test_a_job_that_came_back_in_another_way_fails_its_road_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restarted in place, so that no seat is in its times; it is cancelled, and the next road begins."""
    cluster: Any = Cluster(tmp_path)
    came_back = {"decided": 2.0, "running": 3.0, "first_new_step": 4.0}
    monkeypatch.setattr(Training, "incident_times", lambda _: came_back)
    monkeypatch.setattr(Training, "hears", lambda *_: {})
    monkeypatch.setattr(Training, "trains_again", lambda *_: None)
    said: list[str] = []
    found = roads.repeated(3, lambda n: roads.seat(cluster, roads.Setting(), f"seat{n}"), say=said.append, what="seat")
    assert found == []
    assert len(said) == 1
    assert "FAILED: job 1 was not brought back by the daemon" in said[0]
    assert cluster.jobs == [], "neither the training, which would run for hours, nor the job that waits for its nodes"
