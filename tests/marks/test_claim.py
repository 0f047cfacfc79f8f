"""The claim: what a job says of itself, read as the untrusted text that it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.core.model import Grade, JobRef
from slurm_robust.marks import claim
from slurm_robust.marks.claim import Claim, ClaimAnswer, ClaimError

WORDS = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=300).filter(
    lambda t: "[[srobust:" not in t
)
CLAIMS = st.builds(
    Claim,
    state=st.sampled_from(claim.STATES),
    lineage=st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True),
    restart=st.integers(0, 100),
    incident=st.from_regex(r"[a-z0-9.-]{0,30}", fullmatch=True),
    evict=st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True), max_size=8).map(tuple),
    confidence=st.floats(0, 1),
    why=st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=500),
    step=st.integers(-1, 10**9),
    grade=st.sampled_from(["", *(known.value for known in Grade), "newer"]),
    times=st.dictionaries(st.sampled_from(("fault", "decided", "stopped")), st.floats(0, 2e9), max_size=3),
)


@given(CLAIMS, WORDS)
def test_what_is_written_is_read_again_beside_the_users_own_words(said: Claim, words: str) -> None:
    """It fits 1,024 bytes, the user's words stay, and only `why` and `times` may be shortened."""
    text = claim.render(said, words)
    assert len(text.encode()) <= claim.COMMENT_MAX_BYTES
    read = claim.parse(text)
    assert read is not None
    assert claim.split(text)[0] == words.rstrip()
    for name in ("state", "lineage", "restart", "incident", "evict", "confidence", "step", "grade"):
        assert getattr(read, name) == getattr(said, name)
    assert read.why == said.why or said.why.startswith(read.why.removesuffix("…"))


@pytest.mark.parametrize(
    ("said", "grade", "of_verdict"),
    [
        ("", "", Grade.NONE),
        (',"grade":"weak"', "weak", Grade.WEAK),
        (',"grade":"certain"', "certain", Grade.CERTAIN),
        (',"grade":"newer","later":[7]', "newer", Grade.NONE),
    ],
    ids=["an older version's", "weak", "certain", "a newer version's"],
)
def test_claims_of_other_versions_are_read(said: str, grade: str, of_verdict: Grade) -> None:
    """One without a grade has none, a grade that this version does not know is kept, other keys are ignored."""
    read = claim.parse('[[srobust:1 {"state":"wants","lineage":"a","incident":"i1","evict":["n2"]' + said + "}]]")
    assert read is not None
    assert (read.grade, read.evict) == (grade, ("n2",))
    assert read.verdict(("n2",)).grade is of_verdict


def test_a_long_reason_is_cut_at_a_word() -> None:
    """The on-call reads whole words, and sees that there is more."""
    why = "rank 2 on n3: its data loader hangs at Fault.in_loader (faults.py:96). " + "Requeue without it, " * 12
    read = claim.parse(claim.render(Claim("wants", "a", why=why)))
    assert read is not None
    assert 200 < len(read.why) <= 240
    assert read.why.endswith((" it…", "Requeue…", " without…"))


@given(st.text(max_size=1500))
def test_any_text_is_a_claim_or_none_or_refused(text: str) -> None:
    """No comment of anybody makes another exception."""
    for comment in (text, f"[[srobust:1 {text}]]", f"[[srobust:1 {{{text}}}]]"):
        with contextlib.suppress(ClaimError):
            claim.parse(comment)
        with contextlib.suppress(ClaimError):
            claim.parse_answer(comment)


ODD = st.one_of(
    st.integers(-(10**400), 10**400),
    st.sampled_from(
        [10**400, -(10**400), 10**999, float("nan"), float("inf"), float("-inf"), True, False, None, "", "x"]
    ),
    st.floats(),
    st.integers(1, 1500).map(lambda depth: Raw("[" * depth + "]" * depth)),
    st.integers(1, 600).map(lambda depth: Raw('{"a":' * depth + "1" + "}" * depth)),
)


class Raw(str):
    """JSON as it is to stand in the comment."""


def written(value: object) -> str:
    """A value as JSON, of any size and depth."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{written(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize("kind", [Claim, ClaimAnswer])
@given(st.data())
def test_odd_values_in_any_field_are_refused_and_nothing_else(
    kind: type[Claim | ClaimAnswer], data: st.DataObject
) -> None:
    """Huge numbers, booleans, NaN, nests too deep to be shown: a claim with finite numbers, or ClaimError."""
    read = claim.parse if kind is Claim else claim.parse_answer
    sound = {"state": "watching", "lineage": "a", "incident": "i"}
    field = data.draw(st.sampled_from([f.name for f in dataclasses.fields(kind)]))
    value = data.draw(
        ODD | st.lists(ODD, max_size=2) | st.dictionaries(st.sampled_from(["fault", "?"]), ODD, max_size=2)
    )
    with contextlib.suppress(ClaimError):
        said = read(f"[[srobust:1 {written({**sound, field: value})}]]")
        assert said is None or all(map(math.isfinite, (said.at_s, *getattr(said, "times", {}).values())))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ('{"state":"wants"}', "missing"),
        ('{"state":"please","lineage":"a"}', "state"),
        ('{"state":"wants","lineage":"a","evict":["n1; rm -rf /"]}', "evict"),
        ('{"state":"wants","lineage":"a","evict":["n[1-999999999]"]}', "evict"),
        ('{"state":"wants","lineage":"a","evict":"n1"}', "evict"),
        ('{"state":"wants","lineage":"\' OR 1=1 --"}', "lineage"),
        ('{"state":"wants","lineage":"a","restart":1e400}', "restart"),
        ('{"state":"wants","lineage":"a","at_s":NaN}', "at_s"),
        ('{"state":"wants","lineage":"a","restart":true}', "restart"),
        ('{"state":"watching","lineage":"a","at_s":' + "9" * 400 + "}", "at_s"),
        ('{"state":"watching","lineage":"a","times":{"fault":-' + "9" * 400 + "}}", "times"),
        ('{"state":"wants","lineage":"a","times":{"x y":1}}', "times"),
        ('{"state":"wants","lineage":""}', "lineage"),
        ('{"why":' + "[" * 3000, "JSON"),
    ],
)
def test_hostile_and_malformed_claims_are_refused_with_the_field(body: str, what: str) -> None:
    """Shell, SQL, huge ranges, odd numbers, deep nesting."""
    with pytest.raises(ClaimError, match=what):
        claim.parse(f"[[srobust:1 {body}]]" if body.endswith("}") else f"[[srobust:1 {body}}}]]")


def test_another_protocol_version_is_told() -> None:
    """Wrappers live in users' environments for years: the version before ours is read, others are refused."""
    body = '{"state":"watching","lineage":"a"}'
    assert claim.parse(f"[[srobust:{claim.PROTOCOL_VERSION - 1} {body}]]") is not None
    with pytest.raises(ClaimError, match="version 99"):
        claim.parse(f"[[srobust:99 {body}]]")


def test_keys_of_a_newer_minor_version_are_passed_over() -> None:
    """They may say more; we need not understand it."""
    read = claim.parse('[[srobust:1 {"state":"watching","lineage":"a","colour":"blue"}]]')
    assert read == Claim("watching", "a")


def test_words_that_leave_no_room_are_told() -> None:
    """The user's own words are never cut."""
    with pytest.raises(ClaimError, match="no room"):
        claim.render(Claim("watching", "a"), "x" * 1000)


def test_a_report_names_as_many_nodes_as_there_is_room_for() -> None:
    """A claim that asks for nothing is only told: a long list in it must not silence every later word of the job."""
    nodes = tuple(f"rack-17-gpu-node-{n:04d}.site" for n in range(32))
    said = Claim("watching", "a", incident="1-r0-1", road="seat", mode="observe", evict=nodes, why="x" * 500)
    read = claim.parse(claim.render(said, "the user's own words"))
    assert read is not None
    assert 1 <= len(read.evict) < len(nodes)
    assert (read.evict, read.road) == (nodes[: len(read.evict)], "seat")


def test_an_answer_is_read_like_a_claim() -> None:
    """`AdminComment` is written by operators, and read just as carefully."""
    answer = ClaimAnswer("accepted", "i-1", "because", "seat", ("n5",), 5.0)
    assert claim.parse_answer(claim.render(answer, "an admin's words")) == answer


@pytest.mark.parametrize(("text", "address"), [("12", "12"), ("12_3", "12_3"), ("12+1", "12"), ("0012", "12")])
def test_a_job_is_addressed_exactly(text: str, address: str) -> None:
    """One task of an array by array and task, never by its bare id."""
    assert JobRef.parse(text).address == address


@pytest.mark.parametrize("text", ["", "12_", "_3", "12_3_4", "12.0", "-1", "12;rm", "99999999999"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    """With the three forms that are."""
    with pytest.raises(ValueError, match="expected 12, 12_3"):
        JobRef.parse(text)


def test_progress_is_left_out_before_anything_that_a_recovery_needs() -> None:
    """A Comment that is too short loses the training's progress first, and nothing else for it."""
    progress = {"first": 1790000000.123, "last": 1790000100.456, "step": 4711.0, "every": 60.0}
    asked = Claim("wants", "abc", incident="i1", evict=("n1",), why="x" * 200, times={"fault": 1.5}, progress=progress)
    assert claim.parse(claim.render(asked)) == asked
    text = claim.render(asked, "u" * 650)
    assert claim.parse(text) == dataclasses.replace(asked, progress={})
