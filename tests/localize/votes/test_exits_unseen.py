"""Ranks that are gone without a reported end, beside others whose ends were reported; and lines that name no rank."""

from dataclasses import replace

import pytest
from exit_scenes import GLOO_LOST, NODES, died, raised
from localize_scenes import signal

from slurm_robust.core.model import Conclusion, Failure, FailureCause, SignalKind, Verdict
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.exit_causes import Cause, exit_causes
from slurm_robust.localize.failure import failure_of, words_of
from slurm_robust.localize.judge import judge

PAIRS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


def _ended(rank: int, at_s: float, code: int | None = 1, shared: tuple[str, ...] = ()) -> RankExit:
    return RankExit(rank, PAIRS[rank], at_s, code, shared_lines=shared)


def _judged(*exits: RankExit, **more: object) -> tuple[Verdict, Failure | None]:
    evidence = replace(Evidence(4, PAIRS, exits=exits), **more)  # type: ignore[arg-type]
    verdict = judge(evidence)
    return verdict, failure_of(evidence, verdict)


@pytest.mark.parametrize(
    "line",
    [
        "ConnectionResetError: peer gone in all_reduce",
        "BrokenPipeError: the ring is open",
        "ConnectionAbortedError: no more",
        "ConnectionRefusedError: rank 0 is away",
        "EOFError: the peer closed its end",
        "RuntimeError: Socket closed",
        "torch.distributed.DistBackendError: NCCL error, ncclRemoteError: remote process exited",
    ],
)
@pytest.mark.parametrize("noticed_s", [99.0, 110.0])
def test_who_lost_a_peer_only_follows_those_that_are_gone_unseen(line: str, noticed_s: float) -> None:
    """The exception's type says that a peer is gone, whatever its text; the gone ranks may be noticed late.

    The node of the gone ranks is named, never that of the followers, and the failure is compared on that node alone.
    """
    shared = (*raised(line), *raised(line))
    gone = (_ended(2, noticed_s, None), _ended(3, noticed_s, None))
    found, failure = _judged(_ended(0, 100.0, shared=shared), _ended(1, 100.0, shared=shared), *gone)
    assert [(s.node, s.ranks, s.infrastructure) for s in found.suspects] == [("n1", (2, 3), False)]
    assert "ranks 0-1 only followed" in found.reason
    assert failure is not None
    assert failure.nodes == ("n1",)


def test_one_rank_that_is_gone_unseen_may_have_finished() -> None:
    """It is named as the first, but no node is left for it, however often it comes."""
    gone = died(3, 99.9, None)
    exits = (gone, *(died(n, 100.0, 1, 0, *GLOO_LOST) for n in range(3)))
    evidence = Evidence(4, NODES, exits=exits)
    verdict = judge(evidence)
    assert [s.node for s in verdict.suspects] == ["n3"]
    failure = failure_of(evidence, verdict)
    assert failure is not None
    assert failure.nodes == ()


def test_an_own_reason_goes_before_ranks_that_are_gone_unseen() -> None:
    """They may have finished with exit code 0, which nobody reports."""
    shared = raised("KeyError: 'hidden_size'")
    found, _ = _judged(_ended(0, 100.0, shared=shared), _ended(2, 99.0, None), _ended(3, 99.0, None))
    assert (found.conclusion, found.suspects) == (Conclusion.USER_CODE, ())
    assert "followed" not in found.reason
    code, _ = _judged(_ended(0, 100.0, 3), _ended(2, 80.0, None), _ended(3, 80.0, None))
    assert [s.node for s in code.suspects] == ["n0"]


def test_words_of_no_known_cause_beside_ranks_that_are_gone_unseen_name_nobody() -> None:
    """Any program's own text may mean that a peer is gone: no node is named, nor left at the next time."""
    shared = (*raised("RuntimeError: the others are away"), *raised("RuntimeError: the others are away"))
    ends = (_ended(0, 100.0, shared=shared), _ended(1, 100.0, shared=shared))
    found, failure = _judged(*ends, _ended(2, 99.9, None), _ended(3, 99.9, None))
    assert (found.conclusion, found.suspects) == (Conclusion.UNDETERMINED, ())
    assert "ranks 2-3 on n1" in found.reason
    assert failure is not None
    assert failure.nodes == ()
    before, failure = _judged(*ends, _ended(2, 60.0, None), _ended(3, 60.0, None))
    assert [s.node for s in before.suspects] == ["n0"], "they had long finished"
    assert failure is not None
    assert failure.nodes == (), "but perhaps they had not"


def test_a_dead_node_goes_before_ends_without_a_known_cause() -> None:
    """Its ranks have reported nothing; an exit code of 1 elsewhere only followed."""
    down = signal(SignalKind.NODE_DOWN, "n1", "Slurm calls it down")
    found, failure = _judged(_ended(0, 100.0), _ended(1, 100.0), node_signals=(down,))
    assert [(s.node, s.infrastructure) for s in found.suspects] == [("n1", True)]
    assert failure is not None
    assert failure.cause is FailureCause.NODE


def test_one_traceback_without_a_label_is_one_ranks() -> None:
    """It is that of the rank that ended first; the others lost a peer, or have but their exit code."""
    lost = raised("ConnectionResetError: [Errno 104] Connection reset by peer")
    shared = (*raised("MemoryError"), *lost, *lost, *lost)
    exits = (_ended(2, 100.0, shared=shared), *(_ended(n, 100.4, shared=shared) for n in (3, 0, 1)))
    found, _ = _judged(*exits)
    assert [(s.node, s.ranks) for s in found.suspects] == [("n1", (2,))]
    assert "rank 2 on n1 died first: MemoryError" in found.reason
    shared = raised("MemoryError")
    alone = [replace(e, shared_lines=shared) for e in exits]
    assert [f.cause for _, f in exit_causes(alone)] == [Cause.OOM, Cause.FAILED, Cause.FAILED, Cause.FAILED]


def test_a_traceback_of_one_of_several_ranks_that_srun_reports_together_is_said_so() -> None:
    """`tasks 0-1: Exited with exit code 1`, and one KeyError: whose it is, is not known."""
    shared = (*raised("KeyError: 'x'"), *raised("ConnectionResetError: gone"))
    exits = (_ended(0, 100.0, shared=shared), _ended(1, 100.000001, shared=shared))
    found, _ = _judged(*exits)
    assert found.conclusion is Conclusion.USER_CODE
    assert found.reason.startswith("one of ranks 0-1 raised")
    assert words_of(Evidence(4, PAIRS, exits=exits), found)["rank"] == ""


def test_as_many_tracebacks_as_ranks_are_everybodys() -> None:
    """All ranks lack a module, and all say so, in turn or at the same time."""
    one = raised("ModuleNotFoundError: No module named 'apex'")
    mixed = tuple(line for line in one for _ in range(4))
    for shared in (one * 4, mixed):
        found, _ = _judged(*(_ended(n, 100.0 + n / 10, shared=shared) for n in range(4)))
        assert found.reason.startswith("ranks 0-3 raised")


def test_a_service_that_refuses_a_connection_is_no_peer() -> None:
    """Its library's own error follows from the refusal, and tells whose connection it was."""
    lines = (
        *raised("ConnectionRefusedError: [Errno 111] Connection refused"),
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *raised("redis.exceptions.ConnectionError: Error 111 connecting to redis:6379. Connection refused."),
    )
    assert exit_causes([died(0, 100.0, 1, 0, *lines)])[0][1].cause is Cause.SHARED
