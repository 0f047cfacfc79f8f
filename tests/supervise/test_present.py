"""What is believed of the job's output, given what the agents see."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.supervise.present import Present


@pytest.fixture
def present(tmp_path: Path) -> Present:
    """Job 5, step 0, two tasks of two ranks each (torchrun) on n1 and n2."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    made = Present("5.0.9.1", ("n1", "n2"), job_id=5, layout={}, paths=[path], log_pattern="")
    for rank in range(4):
        found = {"t": "rank", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "task": rank // 2}
        made.fleet.feed({**found, "step_id": "0", "world": 4, "nodes": 2, "at": 1.0}, 1.0)
    return made


def says(present: Present, line: str) -> None:
    """The job's output file grows by this line."""
    with present._outputs[0].path.open("a") as f:
        f.write(line + "\n")
    present.read_outputs()
    present.confirm_exits()


def goes(present: Present, rank: int) -> None:
    """An agent no longer finds this rank."""
    present.fleet.feed({"t": "gone", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "at": 2.0}, 2.0)
    present.confirm_exits()


def test_another_steps_exit_is_not_ours(present: Present) -> None:
    """`task 0` of a side step failed; our task 0 lives: nothing is concluded."""
    says(present, "srun: error: n1: task 0: Exited with exit code 3")
    assert present.scene.exits == {}


def test_an_exit_is_believed_once_the_ranks_are_gone_and_blamed_on_the_tasks_node(present: Present) -> None:
    """With torchrun, srun's task 1 is ranks 2 and 3 on n2, and not rank 1 on n1."""
    says(present, "srun: error: host: task 1: Exited with exit code 1")
    goes(present, 2)
    assert present.scene.exits == {}
    goes(present, 3)
    assert [(e.rank, e.node, e.exit_code) for e in present.scene.exits.values()] == [(2, "n2", 1)]


def test_when_srun_has_ended_its_word_is_taken(present: Present) -> None:
    """Agents may be a second behind."""
    says(present, "srun: error: n2: task 1: Killed")
    present.confirm_exits(ended=True)
    assert [(e.rank, e.node, e.signal) for e in present.scene.exits.values()] == [(2, "n2", 9)]


def test_a_watch_of_one_step_knows_its_cancellation_before_any_rank(tmp_path: Path) -> None:
    """Somebody cancels the step before an agent has found a rank: that is no death to recover from."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    watched = Present("step:3", ("n1",), job_id=5, layout={}, paths=[path], log_pattern="")
    says(watched, "slurmstepd: error: *** STEP 5.2 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
    assert not watched.cancelled
    says(watched, "slurmstepd: error: *** STEP 5.3 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***")
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
def test_only_the_end_of_this_step_counts_as_cancelled(present: Present, line: str, cancelled: bool) -> None:
    """Another step's end, or a lost node, is no wish of a person."""
    says(present, line)
    assert present.cancelled is cancelled


def test_a_labelled_line_belongs_to_its_rank(present: Present) -> None:
    """The victim of a lost peer is not blamed for the words of the one that broke; the rest is nobody's own."""
    says(present, "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    says(present, "[rank0]: RuntimeError: Connection closed by peer")
    says(present, "slurmstepd: error: something of the node")
    says(present, "srun: error: n2: task 1: Exited with exit code 1")
    says(present, "srun: error: n1: task 0: Exited with exit code 1")
    present.confirm_exits(ended=True)
    present.add_last_lines()
    said = {rank: " ".join(e.last_lines) for rank, e in present.scene.exits.items()}
    assert "ECC" in said[2]
    assert "closed by peer" not in said[2]
    assert "ECC" not in said[0]
    assert "something of the node" not in said[0]
    assert "something of the node" in " ".join(present.scene.exits[0].shared_lines)


def test_what_another_rank_of_the_task_said_is_the_tasks(present: Present) -> None:
    """Torchrun: srun tells of task 1, which is ranks 2 and 3."""
    says(present, "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    says(present, "srun: error: n2: task 1: Exited with exit code 1")
    present.confirm_exits(ended=True)
    present.add_last_lines()
    assert "ECC" in present.scene.exits[2].last_lines[0]


def test_sruns_own_labels_name_the_task(tmp_path: Path) -> None:
    """With `srun --label`, and only then: a line may begin with a number of its own."""
    for labelled in (False, True):
        path = tmp_path / f"{labelled}.out"
        path.touch()
        made = Present("5.0.9.1", ("n1", "n2"), job_id=5, layout={}, paths=[path], log_pattern="", labelled=labelled)
        says(made, "1: RuntimeError: CUDA error: uncorrectable ECC error encountered")
        says(made, "srun: error: n1: task 0: Exited with exit code 1")
        says(made, "srun: error: n2: task 1: Exited with exit code 1")
        made.confirm_exits(ended=True)
        made.add_last_lines()
        own = {rank: " ".join(e.last_lines) for rank, e in made.scene.exits.items()}
        assert ["ECC" in own[rank] for rank in (0, 1)] == [False, labelled]


def test_a_rank_that_the_agents_miss_counts_once_it_does_not_come_back(
    present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a second or two; not while something of its task lives, not where it came back, not once all end."""
    clock = [100.0]
    monkeypatch.setattr("slurm_robust.supervise.present.time.time", lambda: clock[0])

    def says_gone(rank: int, *, task_lives: bool) -> None:
        said = {"t": "gone", "n": f"n{rank // 2 + 1}", "rank": rank, "pid": 100 + rank, "at": 9.0}
        present.fleet.feed({**said, "task_lives": task_lives}, clock[0])

    def missed() -> list[int]:
        present.note_vanished()
        return sorted(present.scene.vanished)

    says_gone(0, task_lives=True)
    says_gone(1, task_lives=False)
    assert missed() == []
    clock[0] += 1.5
    assert missed() == [1]
    ended = present.scene.vanished[1]
    assert (ended.node, ended.at_s, ended.exit_code, ended.signal) == ("n1", 100.0, None, 0)
    found = {"t": "rank", "n": "n1", "rank": 1, "pid": 101, "task": 0, "step_id": "0", "world": 4, "at": 1.0}
    present.fleet.feed(found, clock[0])
    assert missed() == []
    for rank in range(4):
        says_gone(rank, task_lives=False)
    clock[0] += 1.5
    assert missed() == []


def test_a_rank_that_ended_while_its_agent_was_away_is_missed(
    present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new agent tells of what it finds: what it has not found by its first heartbeat is gone."""
    clock = [100.0]
    monkeypatch.setattr("slurm_robust.supervise.present.time.time", lambda: clock[0])
    found = {"t": "rank", "n": "n2", "rank": 3, "pid": 103, "task": 1, "step_id": "0", "world": 4, "at": 1.0}
    for message in ({"t": "hello", "n": "n2"}, found, {"t": "hb", "n": "n2"}):
        present.fleet.feed(message, clock[0])
    clock[0] += 2
    present.note_vanished()
    assert sorted(present.scene.vanished) == [2]


def test_torchruns_own_restart_is_no_death(present: Present, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers end and come again under other pids, torchrun between them: told once, and old words are forgotten."""
    clock = [100.0]
    monkeypatch.setattr("slurm_robust.supervise.present.time.time", lambda: clock[0])

    def tells(kind: str, rank: int, pid: int, **more: object) -> None:
        said = {"t": kind, "n": "n1", "rank": rank, "pid": pid, "step_id": "0", "world": 4, "task": 0, "at": 1.0}
        present.fleet.feed({**said, **more}, clock[0])

    for rank in (0, 1):
        tells("rank", rank, 200 + rank, ranked=True)
    assert present.restarted_inside() == []
    says(present, "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    clock[0] += 60
    tells("gone", 1, 201, task_lives=True)
    tells("rank", 0, 50, ranked=False)
    clock[0] += 30
    present.note_vanished()
    assert present.scene.vanished == {}
    assert present.restarted_inside() == []
    for rank in (0, 1):
        tells("rank", rank, 300 + rank, ranked=True)
    clock[0] += 2
    assert present.restarted_inside() == [0, 1]
    assert present.restarted_inside() == []
    says(present, "srun: error: n1: task 0: Exited with exit code 1")
    present.confirm_exits(ended=True)
    present.add_last_lines()
    assert "ECC" not in " ".join(present.scene.exits[0].last_lines)


def test_a_rank_whose_task_is_known_to_have_finished_has_its_exit_code(
    present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by slurmstepd: then it did not die, and whoever waits for it is the program's own mistake."""
    monkeypatch.setattr("slurm_robust.supervise.present.time.time", lambda: 10.0)
    for rank in (2, 3):
        goes(present, rank)
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 0, "age_s": 0.1}
    present.fleet.feed(told, 10.0)
    present.confirm_exits()
    present.note_vanished()
    assert {r: e.exit_code for r, e in present.scene.vanished.items()} == {2: 0, 3: 0}
    assert present.scene.exits == {}


def test_an_agents_word_stands_in_for_sruns(present: Present, monkeypatch: pytest.MonkeyPatch) -> None:
    """Srun's lines go to a terminal, or through a pipe: after a moment slurmstepd's own word is taken."""
    clock = [10.0]
    monkeypatch.setattr("slurm_robust.supervise.present.time.time", lambda: clock[0])
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 9, "age_s": 0.1}
    present.fleet.feed(told, 10.0)
    for rank in (2, 3):
        goes(present, rank)
    assert present.scene.exits == {}
    clock[0] += 1.5
    present.confirm_exits()
    assert [(e.rank, e.node, e.signal) for e in present.scene.exits.values()] == [(2, "n2", 9)]


@pytest.mark.parametrize(("code", "exit_code", "number"), [(1, 1, 0), (137, None, 9), (192, None, 64), (255, 255, 0)])
def test_the_exit_code_of_a_whole_step_is_a_signal_only_where_there_is_one(
    present: Present, code: int, exit_code: int | None, number: int
) -> None:
    """A program may end with 255, which is no signal's."""
    present.whole_exit(code)
    assert (present.scene.exits[-1].exit_code, present.scene.exits[-1].signal) == (exit_code, number)
