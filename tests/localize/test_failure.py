from localize_scenes import WORKER_LOCK, capture, evidence, in_loader, process, rank, repeated, waiting

from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.failure import failure_of
from slurm_robust.localize.judge import judge
from slurm_robust.model import FailureCause


def test_a_hang_is_named_by_its_place() -> None:
    """Two hangs at the same line on different nodes carry the same signature."""
    signatures = []
    for culprit in (1, 2):
        ranks = [waiting(n) if n != culprit else in_loader(n, process(WORKER_LOCK)) for n in range(4)]
        found = repeated(*ranks)
        failure = failure_of(found, judge(found))
        assert failure is not None
        assert failure.nodes == (f"n{culprit}",)
        assert failure.cause is FailureCause.EITHER
        signatures.append(failure.signature)
    assert signatures[0] == signatures[1]
    assert "_try_get_data" in signatures[0]


def test_a_death_is_named_by_its_cause() -> None:
    """A kill may be the node's; an exit code is the program's."""
    for ended, cause in (
        (RankExit(1, "n1", 1.0, None, 9), FailureCause.EITHER),
        (RankExit(1, "n1", 1.0, 3), FailureCause.PROGRAM),
    ):
        found = Evidence(2, {0: "n0", 1: "n1"}, exits=(ended,))
        failure = failure_of(found, judge(found))
        assert failure is not None
        assert (failure.nodes, failure.cause) == (("n1",), cause)


def test_a_stopped_process_is_the_nodes() -> None:
    """Coming again elsewhere does not make it the program's."""
    found = repeated(waiting(0), waiting(2), rank(1, process((), state="T")))
    failure = failure_of(found, judge(found))
    assert failure is not None
    assert failure.cause is FailureCause.NODE


def test_nothing_failed() -> None:
    """A verdict of none has no signature."""
    found = evidence(capture(1.0, waiting(0)), exits=[RankExit(0, "n0", 1.0, 0)])
    assert failure_of(found, judge(found)) is None
