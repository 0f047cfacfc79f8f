"""What is believed of the job's output, given what the agents see."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import FakeClock
from torchrun_attempt import attempt_of, finds, loses, prints, with_ranks

from slurm_robust.config.site import SuperviseConfig
from slurm_robust.supervise.agent.messages import from_agent
from slurm_robust.supervise.reported.suspicion import SilenceLevel
from slurm_robust.supervise.watch.attempt_state import AttemptState


def test_another_steps_exit_is_not_ours(attempt: AttemptState) -> None:
    """`task 0` of a side step failed; our task 0 lives: nothing is concluded."""
    prints(attempt, "srun: error: n1: task 0: Exited with exit code 3")
    assert attempt.exits == {}


def test_another_steps_exit_is_not_ours_while_our_ranks_are_still_to_be_found(tmp_path: Path, clock: FakeClock) -> None:
    """A side step fails in the second in which ours begins: agents have not found our task 0, which lives."""
    early = attempt_of(tmp_path / "slurm-5.out", clock)
    prints(early, "srun: error: n1: task 0: Exited with exit code 3")
    clock.at_s += 300.0  # an image is loaded, or srun waits for what the side step holds
    early.confirm_exits()
    assert early.exits == {}
    with_ranks(early)
    early.confirm_exits()
    assert early.exits == {}


def test_a_line_about_a_task_that_the_step_does_not_have_is_no_death(attempt: AttemptState, clock: FakeClock) -> None:
    """All four ranks are known, in the tasks 0 and 1: a program, or another step, has printed the line."""
    prints(attempt, "srun: error: n1: task 7: Exited with exit code 3")
    clock.at_s += 60
    attempt.confirm_exits()
    attempt.confirm_exits(ended=True)
    assert attempt.exits == {}


def test_a_report_that_its_rank_outlives_is_forgotten(attempt: AttemptState, clock: FakeClock) -> None:
    """A line about another step's task 1 does not become our own death when our task 1 ends well, an hour later."""
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 3")
    clock.at_s += 60
    attempt.fleet.feed(from_agent({"t": "hb", "n": "n2"}), clock.at_s)
    attempt.confirm_exits()
    for rank in (2, 3):
        loses(attempt, rank)
    attempt.confirm_exits(ended=True)
    assert attempt.exits == {}


def test_a_task_that_died_before_it_was_found_is_believed_dead(tmp_path: Path, clock: FakeClock) -> None:
    """Agents have found its neighbour, and not the task itself for ten seconds; those of the neighbour wait for it."""
    early = attempt_of(tmp_path / "slurm-5.out", clock)
    for rank in (0, 1):
        finds(early, rank)
    prints(early, "srun: error: n2: task 1: Exited with exit code 1")
    assert early.exits == {}
    clock.at_s += 11.0
    early.confirm_exits()
    assert [(e.rank, e.node, e.exit_code) for e in early.exits.values()] == [(1, "n2", 1)]


def test_an_exit_is_believed_once_the_ranks_are_gone_and_blamed_on_the_tasks_node(attempt: AttemptState) -> None:
    """With torchrun, srun's task 1 is ranks 2 and 3 on n2, and not rank 1 on n1."""
    prints(attempt, "srun: error: host: task 1: Exited with exit code 1")
    loses(attempt, 2)
    assert attempt.exits == {}
    loses(attempt, 3)
    assert [(e.rank, e.node, e.exit_code) for e in attempt.exits.values()] == [(2, "n2", 1)]


def test_when_srun_has_ended_its_word_is_taken(attempt: AttemptState) -> None:
    """Agents may be a second behind."""
    prints(attempt, "srun: error: n2: task 1: Killed")
    attempt.confirm_exits(ended=True)
    assert [(e.rank, e.node, e.signal) for e in attempt.exits.values()] == [(2, "n2", 9)]


def test_a_watch_of_one_step_knows_its_cancellation_before_any_rank(tmp_path: Path, clock: FakeClock) -> None:
    """Somebody cancels the step before an agent has found a rank: that is no death to recover from."""
    path = tmp_path / "slurm-5.out"
    watched = attempt_of(path, clock, "step:3")
    prints(watched, "slurmstepd: error: *** STEP 5.2 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    assert not watched.cancelled
    prints(watched, "slurmstepd: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    assert watched.cancelled


@pytest.mark.parametrize(
    ("line", "cancelled"),
    [
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", True),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", True),
        ("slurmstepd: error: *** STEP 5.7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", False),
        (
            "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE LOG ***",
            False,
        ),
    ],
)
def test_only_the_end_of_this_step_counts_as_cancelled(attempt: AttemptState, line: str, cancelled: bool) -> None:
    """Another step's end, or a lost node, is no wish of a person."""
    prints(attempt, line)
    assert attempt.cancelled is cancelled


ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."


@pytest.mark.parametrize("line", [ABORTED, "srun: forcing job termination"])
def test_sruns_own_word_on_a_cancellation_stands_in_for_slurmstepds(attempt: AttemptState, line: str) -> None:
    """Slurmstepd's line was lost; srun said before the first task's end that its step is ended."""
    prints(attempt, line)
    assert not attempt.cancelled, "it names no step, and nothing has ended"
    prints(attempt, "srun: error: n2: task 1: Killed")
    attempt.confirm_exits(ended=True)
    assert attempt.cancelled


@pytest.mark.parametrize(
    "before",
    [
        "srun: error: n2: task 1: Killed",
        "srun: error: Node failure on n2",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1",
        "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG",
    ],
)
def test_what_srun_aborts_after_a_fault_is_no_cancellation(attempt: AttemptState, before: str) -> None:
    """It ends the other tasks because of what it has just reported."""
    prints(attempt, before)
    prints(attempt, ABORTED)
    prints(attempt, "srun: error: n1: task 0: Killed")
    attempt.confirm_exits(ended=True)
    assert not attempt.cancelled


def test_a_rank_that_crashes_while_another_step_is_aborted_has_crashed(attempt: AttemptState, clock: FakeClock) -> None:
    """Srun's word names no step: it counts for ends by SIGKILL and SIGTERM, and for two minutes."""
    prints(attempt, ABORTED)
    prints(attempt, "srun: error: n2: task 1: Segmentation fault")
    attempt.confirm_exits(ended=True)
    assert not attempt.cancelled
    attempt.exits.clear()
    clock.at_s += 600
    prints(attempt, "srun: error: n1: task 0: Killed")
    attempt.confirm_exits(ended=True)
    assert not attempt.cancelled


def test_a_rank_that_the_agents_miss_counts_once_it_does_not_come_back(attempt: AttemptState, clock: FakeClock) -> None:
    """Within a second or two; not while something of its task lives, not where it came back, not once all end."""

    def says_gone(rank: int, *, task_lives: bool) -> None:
        said = {"t": "gone", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "at": 9.0}
        attempt.fleet.feed(from_agent({**said, "task_lives": task_lives}), clock.at_s)

    def missed() -> list[int]:
        attempt.note_vanished()
        return sorted(attempt.vanished)

    says_gone(0, task_lives=True)
    says_gone(1, task_lives=False)
    assert missed() == []
    clock.at_s += 1.5
    assert missed() == [1]
    ended = attempt.vanished[1]
    assert (ended.node, ended.at_s, ended.exit_code, ended.signal) == ("n1", 100.0, None, 0)
    found = {"t": "rank", "n": "n1", "rank": 1, "pid": 101, "task": 0, "step_id": "0", "world": 4, "at": 1.0}
    attempt.fleet.feed(from_agent(found), clock.at_s)
    assert missed() == []
    for rank in range(4):
        says_gone(rank, task_lives=False)
    clock.at_s += 1.5
    assert missed() == []


def test_a_rank_that_ended_while_its_agent_was_away_is_missed(attempt: AttemptState, clock: FakeClock) -> None:
    """A new agent tells of what it finds: what it has not found by its first heartbeat is gone."""
    found = {"t": "rank", "n": "n2", "rank": 3, "pid": 103, "task": 1, "step_id": "0", "world": 4, "at": 1.0}
    for message in ({"t": "hello", "n": "n2"}, found, {"t": "hb", "n": "n2"}):
        attempt.fleet.feed(from_agent(message), clock.at_s)
    clock.at_s += 2
    attempt.note_vanished()
    assert sorted(attempt.vanished) == [2]


def test_torchrun_below_whose_workers_ended_is_not_the_rank_of_its_tasks_number(
    tmp_path: Path, clock: FakeClock
) -> None:
    """A rendezvous that numbers workers as they come: task 0 on n1 has rank 1, and rank 0 is on n2."""
    path = tmp_path / "slurm-5.out"
    attempt = attempt_of(path, clock)

    def tells(kind: str, node: str, rank: int, pid: int, **more: object) -> None:
        said = {"t": kind, "n": node, "rank": rank, "pid": pid, "step_id": "0", "world": 2, "at": 1.0}
        attempt.fleet.feed(from_agent({**said, "task": int(node[1]) - 1, **more}), 100.0)

    for node, task, rank in (("n1", 0, 1), ("n2", 1, 0)):
        tells("rank", node, task, 50 + task, ranked=False)  # torchrun, before its workers are there
        tells("rank", node, rank, 200 + rank, ranked=True)
        tells("gone", node, task, 50 + task, task_lives=True)
    assert attempt.fleet.rank_nodes == {0: "n2", 1: "n1"}
    prints(attempt, "[rank1]: RuntimeError: CUDA error: unspecified launch failure\n[rank0]: Connection closed by peer")
    tells("gone", "n1", 1, 201, task_lives=True)
    tells("rank", "n1", 0, 50, ranked=False)
    assert attempt.fleet.rank_nodes == {0: "n2", 1: "n1"}
    assert [r.rank for r in attempt.fleet.alive] == [0]
    tells("gone", "n1", 0, 50, task_lives=False)
    assert [r.rank for r in attempt.fleet.missing(200.0, 1.0)] == [1], "with torchrun its whole task is gone"
    prints(attempt, "srun: error: n1: task 0: Exited with exit code 1")
    attempt.confirm_exits()
    attempt.add_last_lines()
    assert [(e.rank, e.node) for e in attempt.exits.values()] == [(1, "n1")]
    assert "unspecified launch failure" in attempt.exits[1].last_lines[0]


def test_torchruns_own_restart_is_no_death(attempt: AttemptState, clock: FakeClock) -> None:
    """Workers end and come again under other pids, torchrun between them: told once, and old words are forgotten."""

    def tells(kind: str, rank: int, pid: int, **more: object) -> None:
        said = {"t": kind, "n": "n1", "rank": rank, "pid": pid, "step_id": "0", "world": 4, "task": 0, "at": 1.0}
        attempt.fleet.feed(from_agent({**said, **more}), clock.at_s)

    for rank in (0, 1):
        tells("rank", rank, 200 + rank, ranked=True)
    assert attempt.restarted_inside() == []
    prints(attempt, "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    clock.at_s += 60
    tells("gone", 1, 201, task_lives=True)
    tells("rank", 0, 50, ranked=False)
    clock.at_s += 30
    attempt.note_vanished()
    assert attempt.vanished == {}
    assert attempt.restarted_inside() == []
    for rank in (0, 1):
        tells("rank", rank, 300 + rank, ranked=True)
    clock.at_s += 2
    assert attempt.restarted_inside() == [0, 1]
    assert attempt.restarted_inside() == []
    prints(attempt, "srun: error: n1: task 0: Exited with exit code 1")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    assert "ECC" not in " ".join(attempt.exits[0].last_lines)


def test_the_same_rank_in_two_tasks_is_two_runs_and_no_restart(tmp_path: Path, clock: FakeClock) -> None:
    """Each node runs a torchrun of its own: nothing was restarted, and while one of them runs something does."""
    attempt = attempt_of(tmp_path / "slurm-5.out", clock)

    def tells(kind: str, task: int, rank: int) -> None:
        said = {"t": kind, "n": f"n{task + 1}", "rank": rank, "pid": 200 + 10 * task + rank, "step_id": "0", "world": 2}
        attempt.fleet.feed(from_agent({**said, "task": task, "at": 1.0, "ranked": True}), clock.at_s)

    for task in (0, 1):
        for rank in (0, 1):
            tells("rank", task, rank)
    clock.at_s += 10
    assert attempt.restarted_inside() == []
    assert set(attempt.fleet.rank_nodes.values()) == {"n1"}
    for rank in (0, 1):
        tells("gone", 0, rank)
    assert attempt.fleet.alive == []
    assert attempt.fleet.runs
    for rank in (0, 1):
        tells("gone", 1, rank)
    assert not attempt.fleet.runs


def test_a_rank_whose_task_is_known_to_have_finished_has_its_exit_code(attempt: AttemptState, clock: FakeClock) -> None:
    """Told by slurmstepd: then it did not die, and whoever waits for it is the program's own mistake."""
    clock.at_s = 10.0
    for rank in (2, 3):
        loses(attempt, rank)
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 0, "age_s": 0.1}
    attempt.fleet.feed(from_agent(told), 10.0)
    attempt.confirm_exits()
    attempt.note_vanished()
    assert {r: e.exit_code for r, e in attempt.vanished.items()} == {2: 0, 3: 0}
    assert attempt.exits == {}


def test_an_agents_word_stands_in_for_sruns(attempt: AttemptState, clock: FakeClock) -> None:
    """Srun's lines go to a terminal, or through a pipe: after a moment slurmstepd's own word is taken."""
    clock.at_s = 10.0
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 9, "age_s": 0.1}
    attempt.fleet.feed(from_agent(told), 10.0)
    for rank in (2, 3):
        loses(attempt, rank)
    assert attempt.exits == {}
    clock.at_s += 1.5
    attempt.confirm_exits()
    assert [(e.rank, e.node, e.signal) for e in attempt.exits.values()] == [(2, "n2", 9)]


def test_the_limit_does_not_grow_by_a_silence_that_a_stray_line_ended(attempt: AttemptState, clock: FakeClock) -> None:
    """A pause is a sample once training went on after it: one line that only looked like progress raises nothing."""
    clock.at_s, config = 1000.0, SuperviseConfig()
    for step in range(10):
        clock.at_s += 1.0
        prints(attempt, f"step {step}")
    limit_s = attempt.own_limit_s(config)
    assert limit_s == pytest.approx(5.0)
    clock.at_s += 100.0
    prints(attempt, "RuntimeWarning: something is odd at step 5000")
    assert attempt.own_limit_s(config) == limit_s
    clock.at_s += limit_s + 1
    assert attempt.assess(config).level is SilenceLevel.SUSPECT
    # Training goes on by itself: then the pause of a hundred seconds was one of its own.
    for step in (10, 11):
        prints(attempt, f"step {step}")
    assert attempt.own_limit_s(config) == pytest.approx(302.0)


def test_our_story_does_not_feed_the_limit_that_it_tells_of(attempt: AttemptState, clock: FakeClock) -> None:
    """A rank hangs at step 9; each suspicion is told in the file that is read, with a number in it."""
    clock.at_s, config = 1000.0, SuperviseConfig()
    for step in range(10):
        clock.at_s += 2.46
        prints(attempt, f"step {step}")
    limit_s, hung_at_s = attempt.own_limit_s(config), clock.at_s
    for _ in range(5):
        clock.at_s += 31.0
        found = attempt.assess(config)
        prints(attempt, f"srobust: 09:13:41 silence suspected: {found.why}")
        assert "step 2.46 s" in found.why
        assert (attempt.step, attempt.last_sign_s, attempt.own_limit_s(config)) == (9, hung_at_s, limit_s)


@pytest.mark.parametrize(("code", "exit_code", "number"), [(1, 1, 0), (137, None, 9), (192, None, 64), (255, 255, 0)])
def test_the_exit_code_of_a_whole_step_is_a_signal_only_where_there_is_one(
    attempt: AttemptState, code: int, exit_code: int | None, number: int
) -> None:
    """A program may end with 255, which is no signal's."""
    attempt.add_step_exit(code)
    assert (attempt.exits[-1].exit_code, attempt.exits[-1].signal) == (exit_code, number)
