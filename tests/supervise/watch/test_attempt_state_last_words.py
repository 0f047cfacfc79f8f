"""The last lines of the output, assigned to the ranks that ended, and the verdict on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import FakeClock
from torchrun_attempt import attempt_of, prints
from torchrun_output import DEVICE, LOST, OOM, RECORDED, table

from slurm_robust.core.model import Conclusion, Failure, FailureCause, Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.supervise.watch.attempt_state import AttemptState


def test_a_labelled_line_belongs_to_its_rank(attempt: AttemptState) -> None:
    """The victim of a lost peer is not blamed for the words of the one that broke; the rest is nobody's own."""
    prints(attempt, "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    prints(attempt, "[rank0]: RuntimeError: Connection closed by peer")
    prints(attempt, "slurmstepd: error: something of the node")
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 1")
    prints(attempt, "srun: error: n1: task 0: Exited with exit code 1")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    said = {rank: " ".join(e.last_lines) for rank, e in attempt.exits.items()}
    assert "ECC" in said[2]
    assert "closed by peer" not in said[2]
    assert "ECC" not in said[0]
    assert "something of the node" not in said[0]
    assert "something of the node" in " ".join(attempt.exits[0].shared_lines)


def test_what_another_rank_of_the_task_said_is_the_tasks(attempt: AttemptState) -> None:
    """Torchrun: srun tells of task 1, which is ranks 2 and 3."""
    prints(attempt, "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 1")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    assert [(e.rank, e.node) for e in attempt.exits.values()] == [(3, "n2")]
    assert "ECC" in attempt.exits[3].last_lines[0]


def test_sruns_own_labels_name_the_task(tmp_path: Path, clock: FakeClock) -> None:
    """With `srun --label`, and only then: a line may begin with a number of its own."""
    for labelled in (False, True):
        path = tmp_path / f"{labelled}.out"
        made = attempt_of(path, clock, labelled=labelled)
        prints(made, "1: RuntimeError: CUDA error: uncorrectable ECC error encountered")
        prints(made, "srun: error: n1: task 0: Exited with exit code 1")
        prints(made, "srun: error: n2: task 1: Exited with exit code 1")
        made.confirm_exits(ended=True)
        made.add_last_lines()
        own = {rank: " ".join(e.last_lines) for rank, e in made.exits.items()}
        assert ["ECC" in own[rank] for rank in (0, 1)] == [False, labelled]


def test_an_error_that_training_has_survived_is_no_reason_for_its_end(attempt: AttemptState, clock: FakeClock) -> None:
    """Rank 2 printed a CUDA error and went on for minutes; what it said in its last half minute counts."""
    prints(attempt, "step 10 loss 2.0")
    prints(attempt, "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered")
    for step in range(11, 20):
        clock.at_s += 20.0
        prints(attempt, f"step {step} loss 2.0")
    prints(attempt, "[rank2]: stopping, the target is reached")
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 42")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    said = " ".join(" ".join((*e.last_lines, *e.shared_lines)) for e in attempt.exits.values())
    assert "target is reached" in said
    assert "CUDA" not in said


def test_the_last_words_before_a_silence_count(attempt: AttemptState, clock: FakeClock) -> None:
    """Nothing was survived: no step came after them, however long ago they were."""
    prints(attempt, "step 10 loss 2.0")
    prints(attempt, "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered")
    clock.at_s += 900.0
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 1")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    assert any("CUDA" in line for e in attempt.exits.values() for line in e.last_lines)


BOTH = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1\n"


def weigh(attempt: AttemptState) -> tuple[Verdict, Failure | None]:
    """What is made of all that was said, once srun has ended."""
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    attempt.add_last_lines()
    exits = tuple(attempt.exits.values())
    evidence = Evidence(4, attempt.fleet.rank_nodes, exits=exits, node_signals=tuple(attempt.signals))
    verdict = judge(evidence)
    return verdict, failure_of(evidence, verdict)


def test_a_victim_beside_the_root_in_one_task_of_torchruns_hides_nothing(attempt: AttemptState) -> None:
    """Rank 2 lost its peer, rank 3 of the same task had the CUDA error: rank 3 on n2, with a signature to compare."""
    prints(
        attempt, DEVICE.format(3) + "".join(LOST.format(n) for n in (0, 2, 1)) + table(3, 2, 1) + table(0, 1, 1) + BOTH
    )
    verdict, failure = weigh(attempt)
    assert [(s.node, s.ranks, s.infrastructure) for s in verdict.suspects] == [("n2", (3,), False)]
    assert "unspecified launch failure" in verdict.reason
    text = "died: cuda_error: RuntimeError: CUDA error: unspecified launch failure"
    assert failure == Failure(text, ("n2",), FailureCause.WORDS, "cuda_error")


def test_what_is_said_later_counts_too(attempt: AttemptState) -> None:
    """The victim's words were read first; torchrun's table comes seconds later."""
    prints(attempt, LOST.format(2) + "srun: error: n2: task 1: Exited with exit code 1")
    attempt.confirm_exits(ended=True)
    attempt.add_last_lines()
    assert list(attempt.exits) == [2]
    prints(attempt, DEVICE.format(3) + table(3, 2, 1))
    verdict, _ = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_the_root_is_found_without_a_table(attempt: AttemptState) -> None:
    """Another launcher of several ranks a task, or a table that was torn: the labels are enough."""
    prints(attempt, DEVICE.format(3) + "".join(LOST.format(n) for n in (0, 2, 1)) + BOTH)
    verdict, _ = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_last_words_that_only_the_table_has(attempt: AttemptState) -> None:
    """`@record` keeps them from the output."""
    prints(attempt, RECORDED + table(0, 1, 1) + BOTH)
    verdict, failure = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert failure is not None
    assert "unspecified launch failure" in failure.signature


def test_a_worker_killed_under_torchrun_is_the_root(attempt: AttemptState) -> None:
    """Srun says exit code 1 of both tasks; the table says SIGKILL."""
    prints(attempt, "".join(LOST.format(n) for n in (2, 0, 1)) + table(3, 2, -9, "SIGKILL") + table(0, 1, 1) + BOTH)
    verdict, failure = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert "SIGKILL" in verdict.reason
    assert failure is not None
    assert failure.cause is FailureCause.EITHER


@pytest.mark.parametrize("late", [False, True])
def test_a_worker_killed_for_memory_under_torchrun(attempt: AttemptState, late: bool) -> None:
    """Slurmstepd's line, or srun's, on the node of the worker that the table calls killed; also where it comes last."""
    said = "".join(LOST.format(n) for n in (2, 0, 1)) + table(3, 2, -9, "SIGKILL")
    if late:
        prints(attempt, said + BOTH)
        prints(attempt, OOM.partition("srun:")[0])
    else:
        prints(attempt, said + OOM + BOTH.partition("\n")[0])
    verdict, failure = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]
    assert "killed it for memory" in verdict.reason
    assert failure is not None
    assert failure.cause is FailureCause.EITHER


def test_another_steps_kill_for_memory_is_not_ours(attempt: AttemptState) -> None:
    """Several steps write into one file."""
    prints(attempt, OOM.partition("srun:")[0].replace("5.0", "5.7"))
    prints(attempt, table(3, 2, -9, "SIGKILL") + BOTH)
    verdict, _ = weigh(attempt)
    assert "memory" not in verdict.reason


def test_the_first_of_a_thousand_last_words_is_kept(attempt: AttemptState) -> None:
    """Victims say more than the root, and later; their stack frames are not even kept."""
    prints(attempt, DEVICE.format(3))
    prints(attempt, "".join(LOST.format(n % 3) for n in range(1000)))
    prints(attempt, BOTH)
    verdict, _ = weigh(attempt)
    assert [(s.node, s.ranks) for s in verdict.suspects] == [("n2", (3,))]


def test_an_unlabelled_error_of_many_stays_nobodys(attempt: AttemptState) -> None:
    """Plain tracebacks of ranks on both nodes: the GPU's error is told, and no node is blamed for it."""
    plain = (DEVICE.format(3) + LOST.format(0) + LOST.format(1)).replace("[rank", "")
    prints(attempt, "\n".join(line.partition("]: ")[2] for line in plain.splitlines()) + "\n" + BOTH)
    verdict, failure = weigh(attempt)
    assert (verdict.conclusion, verdict.suspects) == (Conclusion.UNDETERMINED, ())
    assert "unspecified launch failure" in verdict.reason
    assert failure is None or not failure.nodes


def test_an_unlabelled_error_where_one_node_alone_failed_is_that_nodes(attempt: AttemptState) -> None:
    """A program without torch.distributed: nobody else could have said it."""
    prints(attempt, "\n".join(line.partition("]: ")[2] for line in DEVICE.format(3).splitlines()))
    prints(attempt, "srun: error: n2: task 1: Exited with exit code 1")
    verdict, failure = weigh(attempt)
    assert [s.node for s in verdict.suspects] == ["n2"]
    assert failure is not None
    assert failure.cause is FailureCause.WORDS
