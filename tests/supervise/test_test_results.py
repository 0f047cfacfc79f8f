"""What the tests of the nodes mean for an incident: its verdict, and the sentences that a person reads."""

from __future__ import annotations

from slurm_robust.core.model import Conclusion, TestName, Verdict
from slurm_robust.stoptime.conclusion import FindingKind, TestFinding, TestReport
from slurm_robust.supervise.incident.verdict_of_tests import outcome_of, verdict_after

BEFORE = Verdict(Conclusion.UNDETERMINED, "all ranks wait", missing=("pairwise tests of the nodes",))
NODES = ("n1", "n2", "n3")
LINK = "the link between n1 and n2: n1 received 3 wrong numbers in all_gather"


def report(kind: FindingKind, *nodes: str, reason: str) -> TestReport:
    """A report with one finding of the pairs."""
    return TestReport(NODES, (TestName.PAIRS,), (TestFinding(TestName.PAIRS, kind, nodes, reason),))


def test_a_failed_link_is_the_reason_and_nobody_is_a_culprit() -> None:
    """Which of the two nodes it is, no test can tell; what was missing before is there now."""
    outcome = outcome_of(report(FindingKind.LINK, "n1", "n2", reason=LINK), {}, 5.0)
    after = verdict_after(BEFORE, outcome, {0: "n1"})
    assert (after.conclusion, after.suspects, after.missing) == (Conclusion.UNDETERMINED, (), ())
    assert after.reason == (
        "the link between n1 and n2 fails the test pairs: n1 received 3 wrong numbers in all_gather; "
        "neither node is proven bad"
    )
    assert "before them: all ranks wait" in after.detail


def test_a_failed_node_is_the_culprit_with_its_ranks() -> None:
    """The evidence of its test is the reason."""
    outcome = outcome_of(report(FindingKind.NODE, "n2", reason="fails with n1 and n3"), {}, 5.0)
    after = verdict_after(BEFORE, outcome, {0: "n1", 1: "n2", 2: "n2"})
    assert [(s.node, s.ranks) for s in after.suspects] == [("n2", (1, 2))]
    assert after.reason == "n2 fails the test pairs: fails with n1 and n3"


def test_what_the_tests_could_not_tell_changes_no_verdict() -> None:
    """Nodes that were left out are said, too."""
    outcome = outcome_of(report(FindingKind.UNDECIDED, "n1", "n2", reason="one of n1, n2"), {"n3": "no answer"}, 5.0)
    assert outcome.open == ("pairs of n1, n2: one of n1, n2", "n3: not tested: no answer")
    assert verdict_after(BEFORE, outcome, {}) is BEFORE
