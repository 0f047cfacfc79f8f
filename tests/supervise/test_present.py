"""What is believed of the job's output, given what the agents see."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchrun_output import DEVICE, LOST, OOM, RECORDED, table

from slurm_robust.config import SuperviseConfig
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.model import Conclusion, Failure, FailureCause, Verdict
from slurm_robust.supervise.watch.attempt_state import Present
from slurm_robust.supervise.watch.suspicion import Level


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
    assert [(e.rank, e.node) for e in present.scene.exits.values()] == [(3, "n2")]
    assert "ECC" in present.scene.exits[3].last_lines[0]


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
    monkeypatch.setattr("slurm_robust.supervise.watch.attempt_state.time.time", lambda: clock[0])

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
    monkeypatch.setattr("slurm_robust.supervise.watch.attempt_state.time.time", lambda: clock[0])
    found = {"t": "rank", "n": "n2", "rank": 3, "pid": 103, "task": 1, "step_id": "0", "world": 4, "at": 1.0}
    for message in ({"t": "hello", "n": "n2"}, found, {"t": "hb", "n": "n2"}):
        present.fleet.feed(message, clock[0])
    clock[0] += 2
    present.note_vanished()
    assert sorted(present.scene.vanished) == [2]


def test_torchrun_below_whose_workers_ended_is_not_the_rank_of_its_tasks_number(tmp_path: Path) -> None:
    """A rendezvous that numbers workers as they come: task 0 on n1 has rank 1, and rank 0 is on n2."""
    path = tmp_path / "slurm-5.out"
    path.touch()
    present = Present("5.0.9.1", ("n1", "n2"), job_id=5, layout={}, paths=[path], log_pattern="")

    def tells(kind: str, node: str, rank: int, pid: int, **more: object) -> None:
        said = {"t": kind, "n": node, "rank": rank, "pid": pid, "step_id": "0", "world": 2, "at": 1.0}
        present.fleet.feed({**said, "task": int(node[1]) - 1, **more}, 100.0)

    for node, task, rank in (("n1", 0, 1), ("n2", 1, 0)):
        tells("rank", node, task, 50 + task, ranked=False)  # torchrun, before its workers are there
        tells("rank", node, rank, 200 + rank, ranked=True)
        tells("gone", node, task, 50 + task, task_lives=True)
    assert present.fleet.rank_nodes == {0: "n2", 1: "n1"}
    says(present, "[rank1]: RuntimeError: CUDA error: unspecified launch failure\n[rank0]: Connection closed by peer")
    tells("gone", "n1", 1, 201, task_lives=True)
    tells("rank", "n1", 0, 50, ranked=False)
    assert present.fleet.rank_nodes == {0: "n2", 1: "n1"}
    assert [r.rank for r in present.fleet.alive] == [0]
    tells("gone", "n1", 0, 50, task_lives=False)
    assert [r.rank for r in present.fleet.missing(200.0, 1.0)] == [1], "with torchrun its whole task is gone"
    says(present, "srun: error: n1: task 0: Exited with exit code 1")
    present.confirm_exits()
    present.add_last_lines()
    assert [(e.rank, e.node) for e in present.scene.exits.values()] == [(1, "n1")]
    assert "unspecified launch failure" in present.scene.exits[1].last_lines[0]


def test_torchruns_own_restart_is_no_death(present: Present, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers end and come again under other pids, torchrun between them: told once, and old words are forgotten."""
    clock = [100.0]
    monkeypatch.setattr("slurm_robust.supervise.watch.attempt_state.time.time", lambda: clock[0])

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
    monkeypatch.setattr("slurm_robust.supervise.watch.attempt_state.time.time", lambda: 10.0)
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
    monkeypatch.setattr("slurm_robust.supervise.watch.attempt_state.time.time", lambda: clock[0])
    told = {"t": "exit", "n": "n2", "step_id": "0", "task": 1, "code": 0, "sig": 9, "age_s": 0.1}
    present.fleet.feed(told, 10.0)
    for rank in (2, 3):
        goes(present, rank)
    assert present.scene.exits == {}
    clock[0] += 1.5
    present.confirm_exits()
    assert [(e.rank, e.node, e.signal) for e in present.scene.exits.values()] == [(2, "n2", 9)]


def test_the_limit_does_not_grow_by_a_silence_that_a_stray_line_ended(
    present: Present, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause is a sample once training went on after it: one line that only looked like progress raises nothing."""
    clock, config = [1000.0], SuperviseConfig()
    monkeypatch.setattr("time.time", lambda: clock[0])
    for step in range(10):
        clock[0] += 1.0
        says(present, f"step {step}")
    limit_s = present.own_limit_s(config)
    assert limit_s == pytest.approx(5.0)
    clock[0] += 100.0
    says(present, "RuntimeWarning: something is odd at step 5000")
    assert present.own_limit_s(config) == limit_s
    clock[0] += limit_s + 1
    assert present.assess(config).level is Level.SUSPECT
    # Training goes on by itself: then the pause of a hundred seconds was one of its own.
    for step in (10, 11):
        says(present, f"step {step}")
    assert present.own_limit_s(config) == pytest.approx(302.0)


def test_our_story_does_not_feed_the_limit_that_it_tells_of(present: Present, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank hangs at step 9; each suspicion is told in the file that is read, with a number in it."""
    clock, config = [1000.0], SuperviseConfig()
    monkeypatch.setattr("time.time", lambda: clock[0])
    for step in range(10):
        clock[0] += 2.46
        says(present, f"step {step}")
    limit_s, hung_at_s = present.own_limit_s(config), clock[0]
    for _ in range(5):
        clock[0] += 31.0
        found = present.assess(config)
        says(present, f"srobust: 09:13:41 silence suspected: {found.why}")
        assert "step 2.46 s" in found.why
        assert (present.step, present.last_sign_s, present.own_limit_s(config)) == (9, hung_at_s, limit_s)


BOTH = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1\n"


def weigh(present: Present) -> tuple[Verdict, Failure | None]:
    """What is made of all that was said, once srun has ended."""
    present.confirm_exits(ended=True)
    present.add_last_lines()
    present.add_last_lines()
    exits = tuple(present.scene.exits.values())
    evidence = Evidence(4, present.fleet.rank_nodes, exits=exits, node_signals=tuple(present.scene.signals))
    verdict = judge(evidence)
    return verdict, failure_of(evidence, verdict)


def test_a_victim_beside_the_root_in_one_task_of_torchruns_hides_nothing(present: Present) -> None:
    """Rank 2 lost its peer, rank 3 of the same task had the CUDA error: rank 3 on n2, with a signature to compare."""
    says(
        present, DEVICE.format(3) + "".join(LOST.format(n) for n in (0, 2, 1)) + table(3, 2, 1) + table(0, 1, 1) + BOTH
    )
    verdict, failure = weigh(present)
    assert [(s.node, s.ranks, s.infrastructure) for s in verdict.suspects] == [("n2", (3,), False)]
    assert "unspecified launch failure" in verdict.reason
    assert failure == Failure("died: cuda error: unspecified launch failure", ("n2",), FailureCause.WORDS)


def test_what_is_said_later_counts_too(present: Present) -> None:
    """The victim's words were read first; torchrun's table comes seconds later."""
    says(present, LOST.format(2) + "srun: error: n2: task 1: Exited with exit code 1")
    present.confirm_exits(ended=True)
    present.add_last_lines()
    assert list(present.scene.exits) == [2]
    says(present, DEVICE.format(3) + table(3, 2, 1))
    verdict, _ = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_the_root_is_found_without_a_table(present: Present) -> None:
    """Another launcher of several ranks a task, or a table that was torn: the labels are enough."""
    says(present, DEVICE.format(3) + "".join(LOST.format(n) for n in (0, 2, 1)) + BOTH)
    verdict, _ = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_last_words_that_only_the_table_has(present: Present) -> None:
    """`@record` keeps them from the output."""
    says(present, RECORDED + table(0, 1, 1) + BOTH)
    verdict, failure = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert failure is not None
    assert "unspecified launch failure" in failure.signature


def test_a_worker_killed_under_torchrun_is_the_root(present: Present) -> None:
    """Srun says exit code 1 of both tasks; the table says SIGKILL."""
    says(present, "".join(LOST.format(n) for n in (2, 0, 1)) + table(3, 2, -9, "SIGKILL") + table(0, 1, 1) + BOTH)
    verdict, failure = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert "SIGKILL" in verdict.reason
    assert failure is not None
    assert failure.cause is FailureCause.EITHER


@pytest.mark.parametrize("late", [False, True])
def test_a_worker_killed_for_memory_under_torchrun(present: Present, late: bool) -> None:
    """Slurmstepd's line, or srun's, on the node of the worker that the table calls killed; also where it comes last."""
    said = "".join(LOST.format(n) for n in (2, 0, 1)) + table(3, 2, -9, "SIGKILL")
    if late:
        says(present, said + BOTH)
        says(present, OOM.partition("srun:")[0])
    else:
        says(present, said + OOM + BOTH.partition("\n")[0])
    verdict, failure = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert "killed it for memory" in verdict.reason
    assert failure is not None
    assert failure.cause is FailureCause.PROGRAM


def test_another_steps_kill_for_memory_is_not_ours(present: Present) -> None:
    """Several steps write into one file."""
    says(present, OOM.partition("srun:")[0].replace("5.0", "5.7"))
    says(present, table(3, 2, -9, "SIGKILL") + BOTH)
    verdict, _ = weigh(present)
    assert "memory" not in verdict.reason


def test_the_first_of_a_thousand_last_words_is_kept(present: Present) -> None:
    """Victims say more than the root, and later; their stack frames are not even kept."""
    says(present, DEVICE.format(3))
    says(present, "".join(LOST.format(n % 3) for n in range(1000)))
    says(present, BOTH)
    verdict, _ = weigh(present)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_an_unlabelled_error_of_many_stays_nobodys(present: Present) -> None:
    """Plain tracebacks of ranks on both nodes: the GPU's error is told, and no node is blamed for it."""
    plain = (DEVICE.format(3) + LOST.format(0) + LOST.format(1)).replace("[rank", "")
    says(present, "\n".join(line.partition("]: ")[2] for line in plain.splitlines()) + "\n" + BOTH)
    verdict, failure = weigh(present)
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert "unspecified launch failure" in verdict.reason
    assert failure is None or not failure.nodes


def test_an_unlabelled_error_where_one_node_alone_failed_is_that_nodes(present: Present) -> None:
    """A program without torch.distributed: nobody else could have said it."""
    says(present, "\n".join(line.partition("]: ")[2] for line in DEVICE.format(3).splitlines()))
    says(present, "srun: error: n2: task 1: Exited with exit code 1")
    verdict, failure = weigh(present)
    assert [s.node for s in verdict.suspects] == ["n2"]
    assert failure is not None
    assert failure.cause is FailureCause.WORDS


@pytest.mark.parametrize(("code", "exit_code", "number"), [(1, 1, 0), (137, None, 9), (192, None, 64), (255, 255, 0)])
def test_the_exit_code_of_a_whole_step_is_a_signal_only_where_there_is_one(
    present: Present, code: int, exit_code: int | None, number: int
) -> None:
    """A program may end with 255, which is no signal's."""
    present.whole_exit(code)
    assert (present.scene.exits[-1].exit_code, present.scene.exits[-1].signal) == (exit_code, number)
