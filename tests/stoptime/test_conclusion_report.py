"""One verdict of all tests."""

from __future__ import annotations

from slurm_robust.core.model import SignalKind, TestName
from slurm_robust.stoptime.alignment import AlignmentVerdict
from slurm_robust.stoptime.conclusion import TestReport, of_alignment, of_pairs, untested
from slurm_robust.stoptime.pairing import PairVerdict

NODES = ("n1", "n2", "n3", "n4")


def report(*verdicts: PairVerdict | AlignmentVerdict, ended_early: str = "") -> TestReport:
    """What these verdicts come to."""
    found = [f for v in verdicts for f in (of_pairs(v) if isinstance(v, PairVerdict) else of_alignment(v))]
    return TestReport(NODES, tuple(TestName), tuple(found), ended_early=ended_early)


def test_nothing_found_passes_only_where_all_tests_came_to_their_end() -> None:
    """A test that was not made is no pass."""
    assert report(PairVerdict(), AlignmentVerdict()).verdict == "passed"
    assert report(ended_early="the budget was used up").verdict == "undecided"
    assert report(PairVerdict(undecided={("n1", "n2"): "one of them"})).verdict == "undecided"


def test_a_failed_link_fails_and_names_no_node() -> None:
    """Both ends get a signal, so that a plan can part them."""
    found = report(PairVerdict(broken_links={("n1", "n2"): "wrong numbers"}))
    assert (found.verdict, found.failed_nodes) == ("failed", ())
    signals = found.signals(5.0)
    assert [(s.kind, s.node, s.source) for s in signals] == [
        (SignalKind.TEST_FAILED, "n1", "test pairs"),
        (SignalKind.TEST_FAILED, "n2", "test pairs"),
    ]


def test_failed_nodes_stand_in_order_and_once() -> None:
    """Two tests may fail on one node."""
    found = report(PairVerdict({"n3": "pairs"}), AlignmentVerdict({"n3": "bits", "n1": "bits"}))
    assert found.failed_nodes == ("n1", "n3")
    assert found.signals(0.0)[0].detail == "pairs"


def test_nodes_with_the_same_reason_are_one_finding() -> None:
    """A thousand nodes without PyTorch are one line."""
    found = list(untested(TestName.PAIRS, {"n1": "no torch", "n2": "busy", "n3": "no torch"}))
    assert [(f.nodes, f.reason) for f in found] == [(("n1", "n3"), "no torch"), (("n2",), "busy")]
