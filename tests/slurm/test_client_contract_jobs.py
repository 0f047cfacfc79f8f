"""What every back end does to jobs, on a live cluster."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from helpers import wait_until
from slurm_helpers import Jobs

from slurm_robust.core.model import JobRef
from slurm_robust.devcluster.cluster import DevCluster
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmError, SlurmNotFoundError, SlurmRefusedError
from slurm_robust.slurm.values import expand

pytestmark = pytest.mark.slurm

STEPS = """#!/bin/sh
srun --overlap -n1 sleep 300 &
srun --overlap -n1 sleep 300 &
wait
exec sleep 300
"""

CLAIM = """[[srobust:1 {"state":"wants","why":"it's 5 \\"x\\" = y"}]]"""

HOSTILE = (
    "x JobId=1 JobState=RUNNING UserId=root(0) Comment=forged",
    "a\nJobId=2 JobName=forged JobState=FAILED NodeList=n[1-4]\n\n",
    "1|2|3,4;5\t6 %i %k %A \\n \\t \\x41 $(touch /tmp/x) `id` 'quoted' \"double\"",
    '"all in quotes"',
    "  spaces around  ",
    "+=x",
    "(null) N/A",
    "naïve, 日本, \u2028, \U0001f600",
    "bell \a escape \x1b[31m unit \x1f delete \x7f return \r",
    "'; DROP TABLE jobs; --",
    "x" * 1024,
    CLAIM,
)


def test_a_job_is_read_with_what_its_owner_asked_for(client: SlurmClient, jobs: Jobs) -> None:
    """One job of the list has the owner, size, limits, node names and files that it was submitted with."""
    began_at_s = int(time.time())
    asked = ["-N2", "-x", "n4", "-t", "1-02:03:00", "-J", "my job", "--comment", "own words", "-p", "main"]
    ref = JobRef(jobs.submit(*asked, "--no-requeue", "--gres=gpu:1"))
    job = jobs.wait(ref, "RUNNING")
    assert (job.ref, job.user, job.uid, job.partition, job.name) == (ref, "root", 0, "main", "my job")
    assert (job.comment, job.admin_comment, job.reservation, job.req_nodes) == ("own words", "", "", "")
    assert job.exclude == "n4"
    assert (len(job.nodes), job.num_nodes, job.batch_host) == (2, 2, job.nodes[0])
    assert job.time_limit_s == ((24 + 2) * 60 + 3) * 60
    assert began_at_s - 1 <= job.submit_at_s <= job.start_at_s <= time.time() + 1
    assert (job.batch, job.requeueable, job.restart_count, job.completing, job.hetjob_id) == (True, False, 0, False, 0)
    assert "gpu:1" in job.gres
    assert (job.std_out, job.std_err) == ("/dev/null", "")
    listed = {other.ref: other for other in client.jobs()}
    assert listed[ref].nodes == job.nodes


def test_an_allocation_without_a_script_cannot_be_requeued(
    client: SlurmClient, jobs: Jobs, cluster: DevCluster
) -> None:
    """`salloc`: Slurm would refuse. A batch job can, the first time and after a requeue."""
    cluster.run(["salloc", "--no-shell", "-N1", "-J", "by hand"])
    (by_hand,) = [job for job in client.jobs() if job.name == "by hand" and job.state == "RUNNING"]
    assert (by_hand.batch, by_hand.requeueable) == (False, False)
    client.cancel(by_hand.ref)
    ref = JobRef(jobs.submit("--requeue"))
    assert jobs.wait(ref, "RUNNING").requeueable
    client.requeue(ref)
    assert jobs.wait(ref, "PENDING").requeueable


def test_an_ended_job_is_still_read_with_its_exit_code(client: SlurmClient, jobs: Jobs) -> None:
    """`exit 3` is 3:0 and `exit 130` 130:0; a script killed by signal 9 is 0:9, also where a step ended otherwise."""
    failed = JobRef(jobs.submit(script="#!/bin/sh\nexit 3\n"))
    killed = JobRef(jobs.submit(script="#!/bin/sh\nkill -9 $$\n"))
    interrupted = JobRef(jobs.submit(script="#!/bin/sh\nexit 130\n"))
    assert jobs.wait(failed, "FAILED").exit_code == "3:0"
    assert jobs.wait(interrupted, "FAILED").exit_code == "130:0"
    stepped = JobRef(jobs.submit(script="#!/bin/sh\nsrun --overlap sh -c 'kill -9 $$'\nexit 4\n"))
    survived = JobRef(jobs.submit(script="#!/bin/sh\nsrun --overlap sh -c 'exit 5'\nexit 0\n"))
    assert jobs.wait(killed, "FAILED").exit_code == "0:9"
    assert jobs.wait(stepped, "FAILED").exit_code == "4:0"
    assert jobs.wait(survived, "COMPLETED").exit_code == "0:0"
    listed = {job.ref: job.exit_code for job in client.jobs()}
    ended = (failed, interrupted, killed, stepped, survived)
    assert [listed[ref] for ref in ended] == ["3:0", "130:0", "0:9", "4:0", "0:0"]


def test_a_job_that_slurm_does_not_know_is_none(client: SlurmClient) -> None:
    """Neither a plain id nor an array task nor a het component that never was."""
    for text in ("999999", "999999_3", "999999+1"):
        assert client.job(JobRef.parse(text)) is None


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_comment_comes_back_as_it_was_and_forges_nothing(client: SlurmClient, jobs: Jobs, text: str) -> None:
    """Whatever a comment holds: both comments come back byte for byte, and every other field and job is untouched."""
    ref = JobRef(jobs.submit("-H"))
    other = JobRef(jobs.submit("-H", "--comment", "untouched", "-J", text.replace("\n", " ")[:60] or "x"))
    before = {job.ref: job for job in client.jobs()}
    client.update_job(ref, comment=text, admin_comment=text)
    after = {job.ref: job for job in client.jobs()}
    assert after.keys() == before.keys()
    assert (after[ref].comment, after[ref].admin_comment) == (text, text)
    assert (after[ref].state, after[ref].uid, after[ref].nodes) == ("PENDING", 0, ())
    assert after[other] == before[other]


def test_a_comment_that_is_no_utf_8_harms_nothing(cluster: DevCluster, client: SlurmClient, jobs: Jobs) -> None:
    """Foreign bytes are replaced, and the rest of the comment and the list is there."""
    ref = JobRef(jobs.submit("-H"))
    cluster.run([b"scontrol", b"update", f"jobid={ref.job_id}".encode(), b"comment=a \xff\xfe b"])  # type: ignore[list-item]
    found = client.job(ref)
    assert found is not None
    assert found.comment.startswith("a ")
    assert found.comment.endswith(" b")


def test_a_comment_of_1025_characters_is_refused_and_the_old_one_stays(client: SlurmClient, jobs: Jobs) -> None:
    """Slurm's limit is a typed error with Slurm's words."""
    ref = JobRef(jobs.submit("-H", "--comment", "old"))
    with pytest.raises(SlurmRefusedError, match="too long"):
        client.update_job(ref, comment="x" * 1025)
    found = client.job(ref)
    assert found is not None
    assert found.comment == "old"


def test_an_empty_comment_clears(client: SlurmClient, jobs: Jobs) -> None:
    """An empty text is not the same as None."""
    ref = JobRef(jobs.submit("-H", "--comment", "old"))
    client.update_job(ref, comment="", admin_comment="answer")
    found = client.job(ref)
    assert found is not None
    assert (found.comment, found.admin_comment) == ("", "answer")


def test_requeue_then_exclude_and_start_now_gives_other_nodes_at_once(client: SlurmClient, jobs: Jobs) -> None:
    """The heart of the seat protocol: a requeued job runs again elsewhere, within seconds instead of 121."""
    ref = JobRef(jobs.submit("-N2", "-w", "n[1-2]"))
    jobs.wait(ref, "RUNNING")
    client.requeue(ref)
    pending = jobs.wait(ref, "PENDING")
    assert pending.restart_count == 1
    assert pending.start_at_s > time.time() + 60
    client.update_job(ref, req_nodes="", exclude="n[1-2]", start_now=True, time_limit_min=7)
    running = jobs.wait(ref, "RUNNING")
    assert running.nodes == ("n3", "n4")
    assert (running.exclude, running.req_nodes, running.time_limit_s) == ("n[1-2]", "", 420)


def test_a_requeue_without_nodes_leaves_out_these_and_the_users_own(client: SlurmClient, jobs: Jobs) -> None:
    """In one call, while the job still ends; Slurm's delay stays."""
    ref = JobRef(jobs.submit("-N2", "-x", "n4"))
    jobs.wait(ref, "RUNNING")
    client.requeue(ref, without=["n1"])
    job = jobs.wait(ref, "PENDING")
    assert job.exclude is not None
    assert set(expand(job.exclude)) == {"n1", "n4"}
    assert job.start_at_s > time.time() + 60


def test_a_requeue_leaves_nothing_out_where_too_few_nodes_would_remain(client: SlurmClient, jobs: Jobs) -> None:
    """A job on the whole partition would wait for ever; the user's own exclusions stay."""
    ref = JobRef(jobs.submit("-N3", "-x", "n4"))
    jobs.wait(ref, "RUNNING")
    client.requeue(ref, without=["n1"])
    assert jobs.wait(ref, "PENDING").exclude == "n4"


def pointed(client: SlurmClient, jobs: Jobs, *args: str, start_in_s: int = 1) -> tuple[JobRef, bool]:
    """A job of two nodes that was requeued and placed on the other two, in one call."""
    ref = JobRef(jobs.submit("-N2", "-w", "n[1-2]", *args))
    jobs.wait(ref, "RUNNING")
    return ref, client.requeue_and_place(ref, start_in_s=start_in_s, req_nodes="", exclude="n[1-2]", time_limit_min=7)


def test_a_job_is_requeued_and_placed_in_one_call(client: SlurmClient, jobs: Jobs) -> None:
    """Slurm takes both while the job ends; its end keeps them, and the start time as long as that lies ahead."""
    ref, taken = pointed(client, jobs, start_in_s=60)
    pending = jobs.wait(ref, "PENDING")
    assert taken
    assert (pending.restart_count, pending.exclude, pending.req_nodes) == (1, "n[1-2]", "")
    assert 30 < pending.start_at_s - time.time() <= 60
    assert pending.time_limit_s == 420
    client.update_job(ref, start_now=True)
    assert jobs.wait(ref, "RUNNING").nodes == ("n3", "n4")


def test_a_start_time_that_has_passed_at_the_end_becomes_slurms_delay(
    client: SlurmClient, jobs: Jobs, tmp_path: Path
) -> None:
    """The end takes two seconds here: the placement holds, and only the start time is to be set again."""
    deaf = tmp_path / "deaf"
    script = f"#!/bin/sh\ntrap '' TERM\n: > {deaf}\nwhile :; do sleep 1; done\n"
    ref = JobRef(jobs.submit("-N2", "-w", "n[1-2]", script=script))
    # It is RUNNING before its script is: until then it ends at once.
    wait_until(deaf.exists, 20, "the script ignores SIGTERM")
    assert client.requeue_and_place(ref, start_in_s=1, req_nodes="", exclude="n[1-2]")
    pending = jobs.wait(ref, "PENDING")
    assert (pending.exclude, pending.req_nodes) == ("n[1-2]", "")
    assert pending.start_at_s > time.time() + 60


def test_a_placement_that_slurm_refuses_leaves_a_plain_requeue(client: SlurmClient, jobs: Jobs) -> None:
    """The reservation does not exist: the job is requeued all the same, which the answer says."""
    ref = JobRef(jobs.submit("-N2"))
    jobs.wait(ref, "RUNNING")
    assert not client.requeue_and_place(ref, start_in_s=1, reservation="nowhere")
    pending = jobs.wait(ref, "PENDING")
    assert (pending.restart_count, pending.reservation) == (1, "")
    assert pending.start_at_s > time.time() + 60


def test_a_job_that_cannot_be_requeued_is_not_changed_either(
    client: SlurmClient, jobs: Jobs, cluster: DevCluster
) -> None:
    """`salloc`: Slurm refuses the requeue, and the second half of the call finds a running job."""
    cluster.run(["salloc", "--no-shell", "-N1", "-t", "90", "-J", "stays"])
    (before,) = [job for job in client.jobs() if job.name == "stays" and job.state == "RUNNING"]
    free = sorted({"n1", "n2", "n3", "n4"} - {*before.nodes})
    with pytest.raises(SlurmRefusedError):
        client.requeue_and_place(before.ref, start_in_s=1, exclude=free[0], req_nodes="", time_limit_min=7)
    after = client.job(before.ref)
    assert after is not None
    assert (after.state, after.time_limit_s, after.exclude) == ("RUNNING", 5400, "")


def test_one_task_of_an_array_is_requeued_and_placed_alone(client: SlurmClient, jobs: Jobs) -> None:
    """Its sibling, which carries the array's own id, runs on."""
    array = jobs.submit("-N1", "--array=0-1")
    one, other = (jobs.wait(JobRef.parse(f"{array}_{index}"), "RUNNING") for index in range(2))
    assert client.requeue_and_place(one.ref, start_in_s=60, exclude=one.nodes[0])
    assert jobs.wait(one.ref, "PENDING").exclude == one.nodes[0]
    now = client.job(other.ref)
    assert now is not None
    assert (now.state, now.restart_count, now.exclude) == ("RUNNING", 0, "")


def test_one_task_of_an_array_is_requeued_alone(client: SlurmClient, jobs: Jobs) -> None:
    """Also the task that carries the array's own id."""
    array = jobs.submit("-N1", "--array=0-2")
    tasks = [JobRef.parse(f"{array}_{index}") for index in range(3)]
    running = [jobs.wait(task, "RUNNING") for task in tasks]
    for index, task in enumerate(running):
        client.requeue(task.ref)
        jobs.wait(task.ref, "PENDING")
        assert [jobs.wait(t.ref, "RUNNING", "PENDING").restart_count for t in running] == [1] * (index + 1) + [0] * (
            2 - index
        )


def test_one_task_of_an_array_is_updated_signalled_and_cancelled_alone(client: SlurmClient, jobs: Jobs) -> None:
    """Its siblings keep comment, steps and state; its own raw id names it as well."""
    array = jobs.submit("-N1", "-n2", "--array=0-2", script=STEPS)
    tasks = [jobs.wait(JobRef.parse(f"{array}_{index}"), "RUNNING") for index in range(3)]
    # The last task carries the array's own id: the one that a careless address would take for all.
    own = next(task for task in tasks if task.ref.job_id == array)
    others = [task for task in tasks if task is not own]
    for task in tasks:
        wait_until(lambda ref=task.ref: jobs.steps(ref) == {"0", "1"}, 10, "two steps each")  # type: ignore[misc]
    client.update_job(JobRef(own.ref.job_id), comment="mine")
    client.signal(own.ref, "KILL", "0")
    wait_until(lambda: jobs.steps(own.ref) == {"1"}, 10, "step 0 gone")
    client.signal(JobRef(own.ref.job_id), "KILL")
    wait_until(lambda: jobs.steps(own.ref) == set(), 10, "all numbered steps gone")
    assert jobs.wait(own.ref, "RUNNING").comment == "mine"
    client.cancel(own.ref)
    jobs.wait(own.ref, "CANCELLED")
    for task in others:
        now = client.job(task.ref)
        assert now is not None
        assert (now.state, now.comment, jobs.steps(task.ref)) == ("RUNNING", "", {"0", "1"})


def test_the_pending_rest_of_an_array_is_seen_but_never_acted_on(client: SlurmClient, jobs: Jobs) -> None:
    """Its bare id stands for many tasks: every act is refused; one named task of it is one job."""
    array = jobs.submit("-H", "--array=0-5%2")
    rest = next(job for job in client.jobs() if job.ref.array_job_id == array)
    assert rest.ref.array_task_id is None
    for ref in (rest.ref, JobRef(array)):
        for act in (client.requeue, client.release, client.cancel, lambda r: client.update_job(r, comment="x")):
            with pytest.raises(SlurmRefusedError, match="several tasks"):
                act(ref)
    one = JobRef.parse(f"{array}_3")
    client.update_job(one, comment="only three")
    found = client.job(one)
    assert found is not None
    assert found.comment == "only three"
    sibling = client.job(JobRef.parse(f"{array}_4"))
    assert sibling is not None
    assert sibling.comment == ""


def test_het_jobs_are_recognised_and_never_acted_on(client: SlurmClient, jobs: Jobs) -> None:
    """Each component says which het job it belongs to."""
    leader = jobs.submit("-H", "-n1", ":", "-n1")
    parts = sorted((job for job in client.jobs() if job.hetjob_id == leader), key=lambda job: job.ref.job_id)
    assert [part.ref.het_offset for part in parts] == [0, 1]
    for act in (client.requeue, client.release, client.cancel, lambda r: client.update_job(r, comment="x")):
        with pytest.raises(SlurmRefusedError, match="het job"):
            act(parts[1].ref)


def test_a_signal_to_one_step_leaves_the_others(client: SlurmClient, jobs: Jobs) -> None:
    """KILL to step 0 leaves step 1, the batch script and the job; a step that is gone is passed over."""
    ref = JobRef(jobs.submit("-N1", "-n2", script=STEPS))
    jobs.wait(ref, "RUNNING")
    wait_until(lambda: jobs.steps(ref) == {"0", "1"}, 10, "two steps")
    client.signal(ref, "SIGKILL", "0")
    wait_until(lambda: jobs.steps(ref) == {"1"}, 10, "step 0 gone")
    client.signal(ref, "9", "0")
    client.signal(ref, "KILL")
    wait_until(lambda: jobs.steps(ref) == set(), 10, "all numbered steps gone")
    assert jobs.wait(ref, "RUNNING").state == "RUNNING"


def test_a_signal_to_a_job_without_steps_is_no_error(client: SlurmClient, jobs: Jobs) -> None:
    """One that has not begun, one that has only its script, one that has ended."""
    held, bare = JobRef(jobs.submit("-H")), JobRef(jobs.submit())
    jobs.wait(bare, "RUNNING")
    for ref in (held, bare):
        client.signal(ref, "TERM")
        client.signal(ref, "TERM", "0")
    client.cancel(bare)
    jobs.wait(bare, "CANCELLED")
    client.signal(bare, "TERM")


def test_cancel_ends_a_job_and_an_ended_one_stays(client: SlurmClient, jobs: Jobs) -> None:
    """Idempotent, as an action must be."""
    ref = JobRef(jobs.submit())
    jobs.wait(ref, "RUNNING")
    client.cancel(ref)
    jobs.wait(ref, "CANCELLED")
    client.cancel(ref)
    jobs.wait(ref, "CANCELLED")


def test_release_ends_a_hold_and_changes_nothing_else(client: SlurmClient, jobs: Jobs) -> None:
    """A job that was submitted held runs; a second release of it is no error, or Slurm's refusal."""
    ref = JobRef(jobs.submit("-H", "--comment=kept"))
    held = jobs.wait(ref, "PENDING")
    assert (held.priority, held.reason) == (0, "JobHeldUser")
    client.release(ref)
    now = jobs.wait(ref, "RUNNING")
    assert now.priority > 0
    assert now.comment == "kept"
    with contextlib.suppress(SlurmRefusedError):
        client.release(ref)
    assert jobs.wait(ref, "RUNNING").restart_count == 0


def test_a_submitted_script_runs_without_the_surrounding_jobs_variables(
    cluster: DevCluster, client: SlurmClient, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCH_ and SLURM_ variables of a surrounding job change nothing; `env` reaches the script."""
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SLURM_JOB_NAME", "leaked")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    out = cluster.layout.work / "submitted.out"
    script = (
        '#!/bin/sh\necho "$WORD" "${SLURM_JOB_NAME:-none}" "${SLURM_CLUSTERS:-none}" "${SLURM_TIME_FORMAT:-none}"\n'
    )
    ref = client.submit(["-N1", "-o", str(out)], script, env={"WORD": "given"})
    jobs.submitted.append(ref.job_id)
    assert jobs.wait(ref, "COMPLETED").user == "root"
    word, name, *others = out.read_text().split()
    assert (word, others) == ("given", ["none", "none"])
    assert name != "leaked"  # 26.05 names it anew


def test_acting_on_an_unknown_job_is_not_found(client: SlurmClient) -> None:
    """Also where Slurm's own command would say nothing, as scancel does."""
    ghost = JobRef(999999)
    for act in (
        client.requeue,
        client.release,
        client.cancel,
        lambda r: client.signal(r, "TERM"),
        lambda r: client.signal(r, "TERM", "0"),
        lambda r: client.update_job(r, comment="x"),
    ):
        with pytest.raises(SlurmNotFoundError, match="Invalid job id"):
            act(ghost)


@pytest.mark.parametrize(
    "change",
    [
        {"comment": "a\0b"},
        {"exclude": "n1 ReservationName=x"},
        {"exclude": "n1\nComment=x"},
        {"req_nodes": "ALL"},
        {"reservation": "x StartTime=now"},
        {"time_limit_min": 0},
    ],
)
def test_a_value_that_would_be_more_than_a_value_is_refused(
    client: SlurmClient, jobs: Jobs, change: dict[str, object]
) -> None:
    """Nothing reaches Slurm, and the job is as it was."""
    ref = JobRef(jobs.submit("-H"))
    before = client.job(ref)
    with pytest.raises(SlurmRefusedError, match="not passed to Slurm"):
        client.update_job(ref, **change)  # type: ignore[arg-type]
    assert client.job(ref) == before


def test_slurms_words_reach_the_caller(client: SlurmClient, jobs: Jobs) -> None:
    """A refusal by the job's state carries Slurm's sentence and names the job."""
    ref = JobRef(jobs.submit())
    jobs.wait(ref, "RUNNING")
    with pytest.raises(SlurmError, match=f"{ref.job_id}.*no longer pending"):
        client.update_job(ref, exclude="n1")
