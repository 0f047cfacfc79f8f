"""The accounting of a live cluster: what happened there is what is read."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from accounting_tools import need_accounting
from helpers import wait_until

from slurm_robust.config.site import SlurmConfig
from slurm_robust.devcluster.cluster import DevCluster, Spec
from slurm_robust.slurm.client import PastRun, SlurmClient
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.factory import connect

pytestmark = pytest.mark.slurm

NAMES = ("a|b\n99|ROOT|x", "é" * 200, b"bad\xff\xfename".decode("utf-8", "surrogateescape"), "'; DROP TABLE job; --")


@pytest.fixture(scope="module")
def accounted(devcluster_factory: Callable[[Spec], DevCluster]) -> DevCluster:
    """Two nodes with accounting."""
    need_accounting()
    return devcluster_factory(Spec(nodes=2, gpus_per_node=4, prolog=False, kill_wait_s=1, accounting=True))


@pytest.fixture(scope="module")
def reader(accounted: DevCluster, backend: str) -> SlurmClient:
    """Reads it, by each back end."""
    conf = str(accounted.layout.slurm_conf)
    return connect(msgspec.convert({"backend": backend, "conf": conf, "timeout_s": 20.0}, SlurmConfig))


def submit(cluster: DevCluster, *args: str, script: str = "true") -> int:
    """A job's id."""
    return int(cluster.run(["sbatch", "--parsable", "-o", "/dev/null", *args, "--wrap", script]).stdout)


def test_what_happened_is_read(accounted: DevCluster, reader: SlurmClient) -> None:
    """Hostile names, each run of a requeued job, a task of an array, one that was cancelled, one that runs."""
    began_s = int(time.time()) - 1
    again = submit(accounted, "-N2", "--gres=gpu:3", "-J", "again", script="sleep 100")
    runs = submit(accounted, script="sleep 100")
    named = [submit(accounted, "-J", name) for name in NAMES]
    array = submit(accounted, "--array=3", script="exit 3")
    waits = submit(accounted, "-N2", "--exclusive", "--gres=gpu:2")
    accounted.run(["scancel", str(waits)])

    def read() -> dict[int, list[PastRun]]:
        found: dict[int, list[PastRun]] = {}
        # A requeued job may start after two minutes only, and is not pending before that.
        for run in reader.past_runs(began_s, int(time.time()) + 600, timeout_s=20):
            found.setdefault(run.job_id, []).append(run)
        return found

    def started() -> bool:
        return bool((run := read().get(again)) and run[0].started_at_s)

    def complete() -> dict[int, list[PastRun]] | None:
        found = read()
        done = all(job in found and found[job][0].ended_at_s for job in (*named, array, waits))
        running = runs in found and found[runs][0].started_at_s
        return found if done and running and len(found.get(again, ())) == 2 else None

    # slurmctld tells the accounting of new jobs every five seconds: of a run that is over by then it has no start.
    wait_until(started, 30, "the accounting has the start", poll_s=0.3)
    accounted.run(["scontrol", "requeue", str(again)])
    found = wait_until(complete, 30, "the accounting has everything", poll_s=0.3)
    accounted.run(["scancel", str(again), str(runs)])

    first, second = sorted(found[again], key=lambda run: run.submitted_at_s or 0)
    assert (first.state, first.nodes, first.node_count, first.gpus) == ("REQUEUED", "n[1-2]", 2, 6)
    assert first.started_at_s
    assert first.ended_at_s
    assert began_s <= first.started_at_s <= first.ended_at_s <= time.time() + 1
    assert (second.state, second.nodes, second.started_at_s, second.gpus) == ("PENDING", "", None, 6)
    # Slurm 22.05 puts other characters for those that its database's character set lacks.
    shown = [found[job][0].name for job in named]
    assert (shown[0], len(shown[1]), shown[2][:3]) == (NAMES[0], 200, "bad")
    assert "DROP TABLE job" in shown[3]
    assert (found[array][0].job, found[array][0].state, found[array][0].exit_code) == (f"{array}_3", "FAILED", "3:0")
    assert (found[waits][0].state, found[waits][0].nodes, found[waits][0].gpus) == ("CANCELLED", "", 4)
    assert (found[runs][0].state, found[runs][0].ended_at_s) == ("RUNNING", None)
    assert {run.cluster for rows in found.values() for run in rows} == {accounted.name}
    assert reader.past_runs(began_s - 7200, began_s - 3600, timeout_s=20) == []


@pytest.mark.variant  # five seconds, for the sentence that test_accounting.py has by a script
def test_an_accounting_that_is_away_is_said(accounted: DevCluster, reader: SlurmClient) -> None:
    """And is read again when it is back, with what happened meanwhile."""
    began_s = int(time.time()) - 1
    accounted.kill_slurmdbd()
    with pytest.raises(SlurmError, match=r"(?i)database|connect"):
        reader.past_runs(began_s, began_s + 60, timeout_s=20)
    meanwhile = submit(accounted)
    accounted.start_slurmdbd()

    def there() -> bool:
        return meanwhile in {run.job_id for run in reader.past_runs(began_s, began_s + 120, timeout_s=20)}

    wait_until(there, 40, "slurmctld has sent what it kept", poll_s=0.5)
