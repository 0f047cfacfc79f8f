"""What an admin sees of jobs that look after themselves: `srobust status` and `srobust incidents`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300)]
Cluster = Callable[..., DevCluster]


def incidents(dev: DevCluster, job: Training) -> list[dict[str, Any]]:
    """The job's incidents as `srobust incidents --json` shows them, newest first."""
    shown = json.loads(dev.run(["srobust", "incidents", "--json"]).stdout)
    return [one for one in shown if one["job"] == job.id]


def incident(dev: DevCluster, job: Training, **wanted: Any) -> dict[str, Any]:
    """Wait for an incident of the job with these values."""

    def look() -> dict[str, Any] | None:
        return next((i for i in incidents(dev, job) if all(i[k] == v for k, v in wanted.items())), None)

    try:
        found = wait_until(look, 60, f"an incident with {wanted}", poll_s=0.3)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{incidents(dev, job)}\n{job.everything()}") from None
    assert found is not None
    return found


def first_line(dev: DevCluster) -> str:
    """The first paragraph of `srobust status`."""
    return " ".join(dev.run(["srobust", "status"]).stdout.split("\n\n")[0].split())


def test_a_hang_in_observe_mode_changes_nothing_and_stands_in_status(cluster: Cluster, submit: Submit) -> None:
    """The admin sees the plan with its road, node and reason, that the job still hangs, and that nobody acts.

    No process, job, node or reservation is touched. Once the job is cancelled, nothing needs anybody, and no incident
    of it is open.
    """
    dev = cluster(mode="observe", nodes=4)
    job = submit(dev, nodes=2, steps=400, fault={"kind": "dead_mount", "rank": 1, "step": 12}, again=True)
    node = job.hears("suspect")["node"]
    assert "is uninterruptible (D)" in job.hears("observed")["text"], job.everything()
    observed = incident(dev, job, outcome="observed")
    assert (observed["kind"], observed["mode"], observed["state"]) == ("report", "observe", "closed")
    assert (observed["plan"]["road"], observed["plan"]["evict"]) == ("seat", [node])
    assert node in observed["plan"]["reason"]
    assert observed["verdict"]["suspects"] == [node]
    text = dev.run(["srobust", "incidents", job.id]).stdout
    assert "nothing was done" in text

    def suspected() -> str:
        (shown,) = json.loads(dev.run(["srobust", "status", "--json"]).stdout)["jobs"]
        return str(shown["suspected_at_s"] or "")

    wait_until(suspected, 60, "the job's suspicion in srobust status")
    told = first_line(dev)
    assert told.startswith("Needs a person now: "), told
    assert job.id in told
    assert f"srobust incidents {job.id}" in told

    now = job.job()
    assert (now.state, now.restart_count, now.exclude or "") == ("RUNNING", 0, "")
    assert job.client.reservations() == []
    assert all(not n.drained and not n.reason for n in job.client.nodes())
    assert job.told("claimed") == []
    pids = ",".join(map(str, dev.processes(int(job.id))))
    states = dev.run(["ps", "-o", "state=,pid=,ppid=,args=", "-p", pids]).stdout
    assert "\nD " in states, f"the rank in D state is not as it was\n{states}\n{job.everything()}"

    dev.run(["scancel", job.id])
    wait_until(lambda: first_line(dev) == "Nothing needs a person now.", 60, "an end of what needs a person")
    assert all(i["state"] == "closed" for i in incidents(dev, job))


def test_a_program_that_fails_in_observe_mode_is_told_after_its_job_has_ended(cluster: Cluster, submit: Submit) -> None:
    """A rank dies, the job with it, within a second: its plan is heard all the same."""
    dev = cluster(mode="observe", standby=0, nodes=3)
    job = submit(dev, nodes=2, fault={"kind": "kill", "rank": 1, "step": 8}, again=True)
    observed = incident(dev, job, outcome="observed")
    assert observed["plan"]["road"] == "restart_in_place", observed


@pytest.mark.variant
def test_a_watch_of_the_plugin_reports_what_it_observes(cluster: Cluster, submit: Submit) -> None:
    """A plain `srun` whose watch was started beside it, as the SPANK plugin does, hangs in observe mode.

    A person who attaches to the same step besides changes nothing in the job.
    """
    dev = cluster(mode="observe", standby=0, nodes=3)
    script = (
        'srun() { command srun "$@" & srobust attach --step=0 --launcher=$! "$SLURM_JOB_ID" 2> attach.log & '
        "wait $!; wait; }; srun"
    )
    job = submit(
        dev, nodes=2, steps=400, fault={"kind": "dead_mount", "rank": 1, "step": 40}, again=True, command=script
    )
    observed = incident(dev, job, outcome="observed")
    assert (observed["kind"], observed["plan"]["road"]) == ("report", "seat")
    assert job.job().state == "RUNNING"
    before = job.job().comment
    looks = dev.run(["timeout", "-s", "INT", "8", "srobust", "attach", "--step=0", job.id], check=False)
    assert looks.returncode in (0, 124, 130), looks.stderr
    assert job.job().comment == before
    dev.run(["scancel", job.id])


DIES_ONCE = """
import os, pathlib, signal, time
again = pathlib.Path("again" + os.environ["SLURM_PROCID"])
time.sleep(3)
if not again.exists():
    again.touch()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(999)
"""


def test_a_cancelled_job_leaves_no_incident_open(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    """The step was started anew and has made no step when somebody cancels the job: the incident closes."""
    dev = cluster(standby=0, nodes=3)
    program = tmp_path / "job" / "program.py"
    program.parent.mkdir()
    program.write_text(DIES_ONCE)
    job = submit(dev, nodes=2, command=f"srobust run {sys.executable} {program} #")
    job.hears("relaunched")
    incident(dev, job, state="running")
    dev.run(["scancel", job.id])
    ended = incident(dev, job, state="closed")
    assert ended["outcome"] == "ended"
    assert "CANCELLED" in ended["reason"]
