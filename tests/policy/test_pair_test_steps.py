"""What a suspect does next that has passed its full check, and which node two failures in company name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.cluster.tested_pairs import (
    BACKOFF_S,
    MOST_TESTS,
    UNTESTED_TRIES,
    BackToService,
    CheckedSuspect,
    Company,
    Meet,
    OutOfService,
    PairReport,
    PairResult,
    PairTest,
    StayInQuarantine,
    SuspectStep,
    broken_by_company,
    next_step,
    parse,
)

NOW_S, WAIT_S = 1000.0, 3600.0
ONE_JOB = CheckedSuspect("s", "incident", NOW_S, jobs=1)
TWO_JOBS = replace(ONE_JOB, jobs=2)
ACCUSED = CheckedSuspect("s", "incident", NOW_S, jobs=0, accused="failed together with a and with b")
BOTH = Company(("p", "q"), ("i",))


def met(partner: str, result: PairResult, failed: str = "", *, node: str = "s", key: str = "incident") -> PairTest:
    """An ended test."""
    return PairTest(1, node, partner, "suspect", key, "r", NOW_S, 7, NOW_S, result.value, failed, f"{partner} said")


def step(suspect: CheckedSuspect, *tests: PairTest, company: Company = BOTH, now_s: float = NOW_S) -> SuspectStep:
    """The next one."""
    return next_step(suspect, tests, company, now_s=now_s, wait_s=WAIT_S)


def test_a_suspect_of_one_job_meets_a_standby_node_and_no_other() -> None:
    """Nodes that jobs could use are not taken for it; without a standby node its full check counts alone."""
    assert step(ONE_JOB) == Meet("p")
    found = step(ONE_JOB, company=Company((), ("i",)))
    assert isinstance(found, BackToService)
    assert (found.unproven, found.why) == (False, "passed its full check; no proven node was free to meet it")


def test_a_suspect_of_two_jobs_waits_for_a_node_then_goes_back_with_a_word() -> None:
    """A free node of nobody's will do for it. Nobody comes: claims alone drain nothing, and a person is told."""
    assert step(TWO_JOBS, company=Company((), ("i",))) == Meet("i")
    waits = step(TWO_JOBS, company=Company())
    assert isinstance(waits, StayInQuarantine)
    assert waits.why.startswith("2 jobs suspected it, and its full check passed: it waits for a free node")
    late = step(TWO_JOBS, company=Company(), now_s=NOW_S + WAIT_S)
    assert isinstance(late, BackToService)
    assert late.unproven
    assert late.why == "2 jobs suspected it, and its full check passed; no test with another node could tell in time"


def test_claims_alone_keep_a_suspect_no_longer_than_their_limit() -> None:
    """A suspect that has failed a test with another node waits for the whole time."""
    claimed = replace(TWO_JOBS, claim_ends_at_s=NOW_S + 10)
    waits = step(claimed, company=Company())
    assert isinstance(waits, StayInQuarantine)
    assert waits.until_s == NOW_S + 10
    assert isinstance(step(claimed, company=Company(), now_s=NOW_S + 10), BackToService)
    together = met("p", PairResult.TOGETHER)
    waits = step(claimed, together, company=Company(), now_s=NOW_S + 10)
    assert isinstance(waits, StayInQuarantine)
    assert waits.until_s == claimed.checked_at_s + WAIT_S


@pytest.mark.parametrize("suspect", [ONE_JOB, TWO_JOBS, ACCUSED])
def test_a_pass_proves_and_an_own_failure_condemns(suspect: CheckedSuspect) -> None:
    """However it came there."""
    passed = step(suspect, met("p", PairResult.PASSED))
    assert passed == BackToService("passed its full check and its test with p", failed_test=suspect.accused)
    assert step(suspect, met("p", PairResult.FAILED, "s")) == OutOfService("p said")


def test_a_partner_that_fails_says_nothing_of_the_suspect() -> None:
    """It meets another."""
    assert step(ONE_JOB, met("p", PairResult.FAILED, "p"), company=Company(("q",))) == Meet("q")


def test_who_failed_together_meets_a_second_node_before_anything_is_decided() -> None:
    """Also a suspect of one job, and then with a free node of nobody's, too; never the same one again."""
    once = met("p", PairResult.TOGETHER)
    assert step(ONE_JOB, once) == Meet("q")
    assert step(ONE_JOB, once, company=Company(("p",), ("i",))) == Meet("i")
    assert isinstance(step(ONE_JOB, once, company=Company(("p",))), StayInQuarantine)
    back = step(ONE_JOB, once, met("q", PairResult.PASSED))
    assert back == BackToService("passed its full check and its test with q", failed_test="p said")
    assert step(ONE_JOB, once, met("q", PairResult.TOGETHER)) == OutOfService(
        "fails with p and with q, which passed their own tests: p said"
    )
    late = step(ONE_JOB, once, company=Company(), now_s=NOW_S + WAIT_S)
    assert late == OutOfService("failed together with p (p said); no test with another node could tell in time")


def test_a_partner_that_fails_with_everybody_is_no_witness() -> None:
    """One bad partner and one more failure do not condemn; the partner that failed with two suspects stands out."""
    tests = [
        met("p", PairResult.TOGETHER, node="other", key="x"),
        met("p", PairResult.TOGETHER),
    ]
    assert broken_by_company("p", tests) == ("other", "s")
    assert broken_by_company("s", tests) == ()
    assert step(ONE_JOB, *tests, met("q", PairResult.TOGETHER), company=Company(("r",))) == Meet("r")
    assert broken_by_company("p", [*tests, met("p", PairResult.PASSED, node="z")]) == ()


def test_tests_that_cannot_run_blame_nobody() -> None:
    """Once for the suspect of one job; three times, further and further apart, where a proof is needed."""
    failing = met("p", PairResult.UNTESTED)
    found = step(ONE_JOB, failing)
    assert isinstance(found, BackToService)
    assert (found.unproven, "(p said)" in found.why) == (False, True)
    assert isinstance(step(TWO_JOBS, failing), StayInQuarantine)
    assert step(TWO_JOBS, failing, now_s=NOW_S + 2 * BACKOFF_S) == Meet("p")
    found = step(TWO_JOBS, *[failing] * UNTESTED_TRIES)
    assert isinstance(found, BackToService)
    assert found.unproven


def test_tests_of_another_quarantine_say_nothing() -> None:
    """It passed last week: this suspicion is new."""
    assert step(TWO_JOBS, met("p", PairResult.PASSED, key="last week")) == Meet("p")


results = st.sampled_from(PairResult)
names = st.sampled_from(["p", "q", "r", "i"])
histories = st.lists(st.tuples(names, results), max_size=2 * MOST_TESTS)


@given(histories, st.sampled_from([ONE_JOB, TWO_JOBS, ACCUSED]), st.booleans())
def test_it_always_ends_and_claims_alone_drain_nobody(
    history: list[tuple[str, PairResult]], suspect: CheckedSuspect, own: bool
) -> None:
    """At the bound, or with as many tests as there may be, it is decided; out of service only after a failed test."""
    tests = [met(p, r, ("s" if own else p) if r is PairResult.FAILED else "") for p, r in history]
    end = step(suspect, *tests, now_s=NOW_S + WAIT_S)
    assert isinstance(end, BackToService | OutOfService)
    if len(tests) >= MOST_TESTS:
        assert isinstance(step(suspect, *tests), BackToService | OutOfService)
    if isinstance(end, OutOfService):
        assert suspect.accused or {PairResult.FAILED, PairResult.TOGETHER} & {r for _, r in history}
    if isinstance(end, BackToService) and suspect.jobs > 1:
        assert end.unproven or any(r is PairResult.PASSED for _, r in history), "it never goes back silently"


FINDING = {"test": "alignment", "kind": "node", "nodes": ["n2"], "reason": "other bits"}


@pytest.mark.parametrize(
    ("finding", "result", "reason"),
    [
        ({}, PairResult.FAILED, "n2: alignment: other bits"),
        ({"kind": "undecided", "nodes": ["n1", "n2"]}, PairResult.TOGETHER, "alignment: other bits"),
        ({"kind": "link", "nodes": ["n1", "n2"]}, PairResult.TOGETHER, "alignment: other bits"),
        ({"kind": "untested"}, PairResult.UNTESTED, "alignment: other bits"),
        ({"kind": "untested", "test": "in-node"}, PairResult.PASSED, ""),
        ({"reason": "ü" * 900}, PairResult.FAILED, None),
    ],
)
def test_a_report_survives_its_jobs_comment(finding: dict[str, object], result: PairResult, reason: str | None) -> None:
    """Each kind of finding, within what Slurm keeps of a comment."""
    report = PairReport.of({"ended_early": "", "findings": [{**FINDING, **finding}]})
    assert report.result is result
    assert reason is None or report.reason == reason
    assert parse(f"text of a person {report.comment()}") == report
    assert len(report.comment().encode()) < 1024


def test_what_is_no_report_is_none() -> None:
    """A comment of a person's, a broken one, and one of another shape; a budget that ran out is no pass."""
    assert parse("hello") is None
    assert parse("srobust-test: {") is None
    assert parse("srobust-test: " + json.dumps({"failed": 3})) is None
    assert PairReport.of({"ended_early": "the budget", "findings": []}).result is PairResult.UNTESTED


def test_the_cause_of_an_untested_pair_comes_before_what_follows_from_it() -> None:
    """As `srobust test` reports a node without PyTorch."""
    reasons = ("a pair needs two nodes", "n3 cannot load PyTorch")
    findings = [{"test": "pairs", "kind": "untested", "nodes": ["n"], "reason": reason} for reason in reasons]
    report = PairReport.of({"ended_early": "", "findings": findings})
    assert report.untested == "pairs: n3 cannot load PyTorch; pairs: a pair needs two nodes"


def test_all_that_goes_wrong_at_once_fits_into_a_comment() -> None:
    """Both nodes fail, with long evidence in an alphabet of two bytes a letter."""
    kinds = (("node", ["n1"]), ("node", ["n2"]), ("undecided", ["n1", "n2"]), ("untested", ["n1"]))
    findings = [{"test": "pairs", "kind": kind, "nodes": nodes, "reason": "ü" * 900} for kind, nodes in kinds]
    report = PairReport.of({"ended_early": "ü" * 900, "findings": findings})
    assert set(report.failed) == {"n1", "n2"}
    assert len(report.comment().encode()) < 1024
