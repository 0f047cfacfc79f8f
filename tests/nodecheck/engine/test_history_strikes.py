from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine import history
from slurm_robust.nodecheck.engine.finding import Finding, Fitness, NodeReport, Result, Status

TWO = {"link": {"strikes": 2, "window_s": 600.0}}


def report(status: Status, stage: str = "periodic", reason: str = "link_down") -> NodeReport:
    """A look with one finding."""
    return NodeReport("n1", stage, (Result("link", Finding(status, reason, "ib0 is down")),))


def looks(*statuses: Status, every_s: float = 300.0, strikes: Any = TWO) -> list[Status]:
    """What each of several periodic looks comes to."""
    kept: dict[str, Any] = {}
    said = []
    for index, status in enumerate(statuses):
        judged, kept = history.weigh(report(status), kept, strikes, boot_id="b", now_s=1000 + index * every_s)
        said.append(judged.results[0].finding.status)
    return said


P, W, F, U, S = Status.PASS, Status.WARN, Status.FAIL, Status.UNKNOWN, Status.SKIP


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([F], [W]),
        ([F, F], [W, F]),
        ([F, F, F], [W, F, F]),
        ([F, P, F, P, F], [W, P, W, P, W]),
        ([F, W, F], [W, W, W]),
        ([F, U, F], [W, U, F]),  # one that could not see says nothing
        ([F, S, F], [W, S, W]),
    ],
)
def test_a_fault_counts_when_two_looks_in_a_row_have_it(seen: list[Status], said: list[Status]) -> None:
    """soperator#1963: what comes and goes drains nobody; what stays does."""
    assert looks(*seen) == said


def test_the_second_look_comes_within_the_window() -> None:
    """Two faults a day apart are two first looks."""
    assert looks(F, F, every_s=601) == [W, W]
    assert looks(F, F, every_s=600) == [W, F]


def test_one_strike_counts_at_once() -> None:
    """A GPU off the bus needs no second look; a check that is not in the settings has one strike, too."""
    assert looks(F, strikes={"link": {"strikes": 1, "window_s": 600.0}}) == [F]
    assert looks(F, strikes={}) == [F]


def test_the_warning_says_which_look_it_is() -> None:
    """For the log."""
    judged, _ = history.weigh(report(F), {}, TWO, boot_id="b", now_s=10)
    assert judged.results[0].finding.sentence == "ib0 is down (run 1 of 2)"
    assert judged.verdict is Fitness.FIT


@pytest.mark.parametrize("stage", ["prolog", "epilog", "full"])
def test_other_stages_count_at_once(stage: str) -> None:
    """A job that starts has no second look."""
    judged, _ = history.weigh(report(F, stage), {}, TWO, boot_id="b", now_s=10)
    assert judged.verdict is Fitness.UNFIT


def test_a_new_boot_forgets() -> None:
    """The second look after a boot is a first one."""
    _, kept = history.weigh(report(F), {}, TWO, boot_id="b", now_s=10)
    judged, _ = history.weigh(report(F), kept, TWO, boot_id="c", now_s=20)
    assert judged.results[0].finding.status is W


def test_what_an_epilog_sees_first_is_the_job_s() -> None:
    """The reason names the job; the next looks say since when; a passing one ends it."""
    judged, kept = history.weigh(report(F, "epilog"), {}, TWO, boot_id="b", now_s=10, job_id=42)
    assert judged.results[0].finding.sentence == "ib0 is down (seen as job 42 ended)"
    judged, kept = history.weigh(report(F, "prolog"), kept, TWO, boot_id="b", now_s=20, job_id=43)
    assert judged.results[0].finding.sentence == "ib0 is down (since job 42)"
    assert judged.results[0].finding.evidence["seen_by_job"] == 42
    _, kept = history.weigh(report(P, "prolog"), kept, TWO, boot_id="b", now_s=30, job_id=43)
    judged, kept = history.weigh(report(F, "prolog"), kept, TWO, boot_id="b", now_s=40, job_id=44)
    assert judged.results[0].finding.sentence == "ib0 is down"


def test_what_was_there_before_is_not_the_job_s() -> None:
    """A warning that a prolog saw is not blamed on the job that ends later."""
    _, kept = history.weigh(report(W, "prolog"), {}, TWO, boot_id="b", now_s=10, job_id=42)
    judged, _ = history.weigh(report(W, "epilog"), kept, TWO, boot_id="b", now_s=20, job_id=42)
    assert judged.results[0].finding.sentence == "ib0 is down"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries({}, optional=dict.fromkeys(("reason", "looks", "last_s", "job"), JSON)) | JSON


@given(st.fixed_dictionaries({"boot_id": st.just("b"), "checks": st.fixed_dictionaries({"link": ENTRIES}) | JSON}))
def test_whatever_was_kept_a_first_look_never_drains(kept: dict[str, Any]) -> None:
    """State that is garbage is no state: no crash, and no fault that counts twice out of nothing."""
    judged, after = history.weigh(report(P), kept, TWO, boot_id="b", now_s=1e6)
    judged, after = history.weigh(report(F), after, TWO, boot_id="b", now_s=1e6 + 1)
    assert judged.verdict is Fitness.FIT
    history.weigh(report(F), kept, TWO, boot_id="b", now_s=1e6)


@pytest.mark.parametrize("damaged", [float("inf"), float("nan"), -float("inf"), 1 << 80, "3", None, True])
def test_a_damaged_count_is_no_count(damaged: object) -> None:
    """JSON can hold numbers that no look wrote: the look goes on as the first."""
    kept = {"boot_id": "b", "checks": {"xid": {"reason": "x", "looks": damaged, "last_s": damaged, "job": None}}}
    report = NodeReport("n1", "periodic", (Result("xid", Finding(Status.FAIL, "x", "XID")),))
    weighed, _ = history.weigh(report, kept, {"xid": {"strikes": 2, "window_s": 1e9}}, boot_id="b", now_s=50.0)
    assert weighed.results[0].finding.status is Status.WARN
