"""A rank hangs: the reference story, and its variations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Submit, Training  # type: ignore[import-not-found]
from helpers import wait_until

from slurm_robust.core.training_time import Stop, divided, spent
from slurm_robust.devcluster.cluster import DevCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(240)]
Cluster = Callable[..., DevCluster]


def test_a_rank_in_d_state_moves_the_job_to_the_standby_and_the_node_passes_its_recheck(
    cluster: Cluster, submit: Submit
) -> None:
    """The reference story: suspected, captured, still, node in quarantine, seats held, resumed; back with a strike.

    Meanwhile another job waits for the very nodes, with a higher priority: it must not get the seats.
    """
    dev = cluster()
    job = submit(dev, fault={"kind": "dead_mount", "rank": 1, "step": 13})
    suspect = job.hears("suspect")["node"]
    # Three nodes are never free beside this job: the fifth, and the suspect once it has passed its recheck.
    competitor = dev.run(["sbatch", "--parsable", "-N3", "--exclusive", "--nice=-1000", "--wrap", "sleep 1"]).stdout
    resumed = job.hears("resumed")
    assert resumed["resume_step"] == 10
    assert resumed["step"] > 10
    running = job.job()
    assert suspect not in running.nodes
    assert running.restart_count == 1
    state = dev.run(["squeue", "-h", "-o", "%T", "-j", competitor.strip()]).stdout.strip()
    assert state == "PENDING", "the competitor took a seat"
    dev.run(["scancel", competitor.strip()])
    order = [line["kind"] for line in job.story() if line["kind"] in ("suspected", "captured", "suspect", "claimed")]
    assert order == ["suspected", *["captured"] * len(job.told("captured")), "suspect", "claimed"]
    ended = job.ends()
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
    incident = job.incident_closed()
    assert incident["verdict"]["conclusion"] == "culprit"
    assert incident["plan"]["evict"] == [suspect]
    for key in ("fault", "suspected", "captured", "localised", "decided", "stopped", "running", "first_new_step"):
        assert key in incident["times"], key
    job.assert_clean_slurm()
    assert_the_journal_tells_its_times(job, incident["times"])
    wait_until(lambda: not job.reservations("srobust-quarantine"), 60, "the node's way out of quarantine")
    assert not job.node(suspect).drained
    shown = json.loads(dev.run(["srobust", "nodes", "--json"]).stdout)
    assert [n["strikes"] for n in shown if n["name"] == suspect] == [1]
    told = dev.run(["srobust", "incidents", job.id]).stdout
    assert "Where the ranks stood" in told
    assert "before_step" in told
    report = next(job.story_folder.glob("*/report.md")).read_text()
    assert suspect in report
    assert "before_step" in report


def assert_the_journal_tells_its_times(job: Training, times: dict[str, float]) -> None:
    """Both attempts, to a second; and the parts of the training's time sum to all of it."""
    ended = job.job()
    wait_until(
        lambda: [a.state for a in job.attempts()] == ["REQUEUED", "COMPLETED"], 20, f"two ends: {job.attempts()}"
    )
    first, second = job.attempts()
    starts = [line["at_s"] for line in job.told("training")]
    near = {"abs": 1.0}
    assert first.times.first_step_at_s == pytest.approx(starts[0], **near)
    assert first.times.last_step_at_s == pytest.approx(times["fault"], **near)
    # The job ends after its step, which on a busy machine takes seconds.
    assert times["stopped"] - 2.0 <= (first.times.end_at_s or 0) <= times["running"] + 1, (first, times)
    assert second.times.start_at_s == ended.start_at_s
    assert second.times.first_step_at_s == pytest.approx(times["first_new_step"], **near)
    assert second.times.first_new_step_at_s > second.times.first_step_at_s  # type: ignore[operator]
    assert second.times.end_at_s == pytest.approx(ended.end_at_s, abs=2.0)
    assert (first.times.nodes, first.times.gpus, second.times.last_step) == (3, 6, 60)
    spans = divided([first.times, second.times], [Stop(times)], 0.0)
    parts = {what.value: round(seconds, 1) for what, seconds in spent(spans).items() if seconds}
    assert sum(spent(spans).values()) == pytest.approx(second.times.end_at_s - first.times.eligible_at_s)  # type: ignore[operator]
    assert parts["detection"] == pytest.approx(times["suspected"] - times["fault"], **near)
    assert parts["restart"] == pytest.approx(times["first_new_step"] - times["decided"], **near)
    assert "unknown" not in parts, spans


def test_a_rank_that_a_signal_stopped_is_continued_and_training_goes_on(cluster: Cluster, submit: Submit) -> None:
    """SIGSTOP of one rank, and nothing against its node: no restart and no word against the node, and exit code 0."""
    dev = cluster(nodes=3, standby=0, supervise={"continue_stopped_after_s": 4.0, "weak_patience_s": 90.0})
    job = submit(dev, nodes=2, fault={"kind": "stop", "rank": 1, "step": 13})
    continued = job.hears("continued")
    assert (continued["rank"], continued["node"]) == (1, job.rank_node(1))
    assert "nobody traces it: it was continued" in continued["text"]
    assert "rank 1 had been stopped by a signal" in job.hears("cleared")["text"], job.everything()
    ended = job.ends()
    assert (ended.state, ended.exit_code, ended.restart_count) == ("COMPLETED", "0:0", 0), job.everything()
    for kind in ("decided", "claimed", "relaunched"):
        assert job.told(kind) == [], job.everything()
    assert job.output().count("resumed from step") == 0


@pytest.mark.variant
def test_a_data_loader_that_hangs_twice_is_restarted_in_place_once_and_costs_no_node(
    cluster: Cluster, submit: Submit
) -> None:
    """A healthy loader may wait, too: weak evidence restarts the attempt once, and names no node the second time.

    Without tests (`ladder.tests` is empty here) the job is requeued then, and no node is left out. The second time the
    loader hangs before the attempt has a step time of its own, so that quiet captures find it.
    """
    dev = cluster(supervise={"quiet_capture_interval_s": 4.0})
    job = submit(dev, fault={"kind": "loader_hang", "rank": 1, "step": 13, "node": "n2"}, again=True)
    first = job.hears("decided", 90)
    assert (first["road"], first["evict"]) == ("restart_in_place", []), job.everything()
    assert "weak evidence costs no node" in first["text"]
    again = job.hears("decided", 90, 2)
    assert again["evict"] == [], job.everything()
    assert again["road"] in ("seat", "plain_requeue"), job.everything()
    dev.run(["scancel", job.id])
    assert all(not node.drained for node in job.client.nodes())
    assert not job.reservations("srobust-quarantine")


@pytest.mark.variant
def test_a_hang_on_a_node_with_a_fault_drains_it_with_the_evidence(cluster: Cluster, submit: Submit) -> None:
    """The same, and the node's kernel log holds an XID 79: its recheck finds it."""
    dev = cluster()
    job = submit(dev, fault={"kind": "dead_mount", "rank": 2, "step": 8})
    job.hears("training")
    node = job.rank_node(2)
    dev.add_kmsg(node, "NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.")
    assert job.hears("suspect")["node"] == node
    assert job.ends().state == "COMPLETED"
    # A node that is slow to end the job is set DOWN for that first.
    wait_until(lambda: "79" in job.node(node).reason, 60, f"the drain\n{job.node(node)}")
    assert job.node(node).drained
    assert job.node(node).reason.startswith("srobust:")
    job.assert_clean_slurm()


@pytest.mark.variant
def test_a_hang_of_an_array_task_leaves_its_siblings_alone(cluster: Cluster, submit: Submit) -> None:
    """D state of one rank in task 2 of an array; task 1 runs on, pending task 3 is not touched."""
    dev = cluster()
    keep = dev.directory / "work" / "go"
    job = submit(
        dev,
        nodes=2,
        fault={"kind": "dead_mount", "rank": 1, "step": 8},
        sbatch=("--array=1-3",),
        command=(
            f'[ "$SLURM_ARRAY_TASK_ID" = 2 ] || {{ while [ ! -e {keep} ]; do sleep 0.2; done; exit 0; }}; '
            'srobust run --robust-checkpoint-dir="$PWD/ck"'
        ),
    )
    array = job.id
    job.id = f"{array}_2"
    job.hears("resumed", 90)
    assert job.job().restart_count == 1
    tasks = {j.ref.address: j for j in job.client.jobs()}
    assert tasks[f"{array}_1"].state == "RUNNING"
    assert tasks[f"{array}_1"].restart_count == 0
    assert all(j.restart_count == 0 for a, j in tasks.items() if a != f"{array}_2")
    keep.touch()
    assert job.ends().state == "COMPLETED"
    job.assert_clean_slurm()


def test_a_spare_is_taken_without_a_requeue_and_other_steps_are_left_alone(cluster: Cluster, submit: Submit) -> None:
    """`-N3` allocated, `-N2` trained: the step starts anew on the spare; the job itself goes on.

    A monitor outlives the training's recovery, and a helper's bad end in the same output file means nothing.
    """
    dev = cluster()
    side = "srun --overlap -N1 -n1 --mem=0 --gres=none"
    fails_in_training = "until grep -qs 'step 3/' slurm-*.out; do sleep 0.1; done; exit 3"
    job = submit(
        dev,
        nodes=3,
        fault={"kind": "dead_mount", "rank": 1, "step": 25},
        command=(
            f'{side} sleep 3333 & {side} sh -c "{fails_in_training}" & '
            'srobust run --robust-checkpoint-dir="$PWD/ck" -N2 -n2'
        ),
    )
    wait_until(lambda: "Exited with exit code 3" in job.output(), 60, "the helper's bad end")
    suspect = job.hears("suspect")
    assert suspect["ranks"] == [1], job.everything()
    assert job.hears("relaunched")["evicted"] == [suspect["node"]]
    job.hears("resumed")
    assert len(job.told("verdict")) == 1, job.everything()
    assert any(b"sleep\x003333" in command_line(p) for p in dev.processes(int(job.id)))
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 0), job.everything()
    times = next(job.story_folder.glob("*/incident.json")).read_text()
    assert "first_new_step" in times


@pytest.mark.variant
def test_the_requeue_leaves_nothing_of_ours_behind_under_linuxproc(cluster: Cluster, submit: Submit) -> None:
    """Where Slurm tracks processes by parentage alone, wrapper and supervisor of the old attempt end all the same."""
    dev = cluster(proctrack="linuxproc")
    job = submit(dev, nodes=2, fault={"kind": "dead_mount", "rank": 1, "step": 8})
    job.hears("claimed")
    assert job.hears("resumed")["resume_step"] == 5
    assert "started anew; the training was not touched" not in job.output()
    wrappers = [p for p in dev.processes(int(job.id)) if b"-m\0slurm_robust.supervise\0" in command_line(p)]
    assert len(wrappers) == 1, job.everything()
    ended = job.ends()
    assert (ended.state, ended.restart_count) == ("COMPLETED", 1), job.everything()
    assert len(job.told("claimed")) == 1
    job.assert_clean_slurm()


def command_line(pid: int) -> bytes:
    """A process's command line, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.variant
def test_a_corrupt_latest_checkpoint_is_passed_over(cluster: Cluster, submit: Submit) -> None:
    """The newest checkpoint is damaged while the rank hangs: the one before is used."""
    dev = cluster()
    job = submit(dev, fault={"kind": "dead_mount", "rank": 1, "step": 18})
    job.hears("suspected")
    newest = max((job.folder / "ck").glob("step-*"))
    assert newest.name == "step-00000015"
    part = next(newest.glob("*.pt"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    assert job.hears("resumed")["resume_step"] == 10
    assert any("passed over" in line["text"] for line in job.told("checkpoint"))
    assert job.output().count("resumed from step 10 (/") == 1
    assert job.ends().state == "COMPLETED"


@pytest.mark.variant
def test_without_a_daemon_the_job_requeues_itself_and_asks_to_leave_the_suspect_out(
    cluster: Cluster, submit: Submit
) -> None:
    """Nobody answers the claim: a plain requeue, and a word about which node not to use again.

    Slurm takes that word from a pending job only, and ends the one who says it a few milliseconds after the requeue: on
    busy cores it may come too late. What reaches Slurm is asserted from outside a job, in the contract tests.
    """
    dev = cluster(daemon=False, standby=0, supervise={"answer_timeout_s": 1.0})
    job = submit(dev, fault={"kind": "dead_mount", "rank": 1, "step": 8})
    suspect = job.hears("suspect")["node"]
    assert f"leave {suspect} out" in job.hears("unanswered")["text"]
    wait_until(lambda: job.job().state == "PENDING", 30, "the requeue")
    assert job.job().exclude in (suspect, ""), job.everything()
