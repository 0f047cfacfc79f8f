"""What the answers of a pair's nodes say: who is excused, and whose words count."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.stoptime.group_results import group_result
from slurm_robust.stoptime.pairing import PairOutcome

GOOD = {"wrong": {"all_gather": 0}, "gb_per_s": {"all_gather": 2.0}}


def result(*answers: dict[str, Any], gone: dict[str, str] | None = None, cut: bool = False) -> Any:
    """The result of n1 and n2 with these answers."""
    named = {f"n{i}": answer for i, answer in enumerate(answers, 1) if answer}
    return group_result(("n1", "n2"), named, gone or {}, 30.0, cut=cut)


def test_the_slower_member_gives_the_bandwidth() -> None:
    """Both received all numbers as they were sent."""
    found = result(GOOD, {**GOOD, "gb_per_s": {"all_gather": 1.5}})
    assert (found.outcome, found.gb_per_s) == (PairOutcome.PASSED, {"all_gather": 1.5})


def test_wrong_numbers_fail_and_say_who_received_them() -> None:
    """Also where the bandwidth is good."""
    found = result(GOOD, {**GOOD, "wrong": {"all_gather": 3, "all_reduce": 0}})
    assert (found.outcome, found.reason) == (PairOutcome.FAILED, "n2 received 3 wrong numbers in all_gather")


def test_the_rank_that_failed_speaks_before_the_one_that_noticed() -> None:
    """A closed connection is what the partner sees of it."""
    found = result({"error": "RuntimeError: Connection closed by peer"}, {"error": "RuntimeError: CUDA error: ECC"})
    assert (found.outcome, found.reason) == (PairOutcome.FAILED, "n2 says RuntimeError: CUDA error: ECC")
    found = result({"error": "RuntimeError: Connection closed by peer"}, {"late": True})
    assert found.reason == "n1 says RuntimeError: Connection closed by peer"


@pytest.mark.parametrize("error", ["OutOfMemoryError: CUDA out of memory", "the server: EADDRINUSE, port 20001"])
def test_an_error_that_is_no_fault_blames_nobody(error: str) -> None:
    """Memory that others use, a port that is taken: the test could not run."""
    assert result({"error": error}, {"late": True}).outcome is PairOutcome.NOT_RUN


def test_no_answer_in_time_fails_and_a_node_that_left_does_not() -> None:
    """A hang is a failure of the pair; the partner of a node that left has not been tested."""
    assert result(GOOD, {"late": True}).reason == "no end within 30 s on n2"
    assert result(GOOD, {}).outcome is PairOutcome.FAILED
    left = result({"error": "Connection closed by peer"}, {}, gone={"n2": "n2 left the test"})
    assert (left.outcome, left.absent, left.reason) == (PairOutcome.NOT_RUN, frozenset({"n2"}), "n2 left the test")


@pytest.mark.parametrize("answer", [{"late": True}, {}, {"error": "RuntimeError: timed out after 8000 ms"}])
def test_a_time_that_the_budget_has_cut_short_blames_nobody(answer: dict[str, Any]) -> None:
    """To connect takes up to ten seconds. A fault of its own that a rank has met by then counts all the same."""
    found = result(GOOD, answer, cut=True)
    assert (found.outcome, found.reason) == (PairOutcome.NOT_RUN, "no end within the 30 s that the budget left")
    assert result({**GOOD, "wrong": {"all_gather": 3}}, answer, cut=True).outcome is not PairOutcome.PASSED
    assert result({"error": "CUDA error: ECC"}, answer, cut=True).outcome is PairOutcome.FAILED
