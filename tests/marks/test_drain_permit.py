from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.drain_permit import MAX_PERMIT_S, DrainPermit, of_daemon, parse, render_permit

NOW_S = 1_763_686_000.0


@pytest.mark.parametrize(
    ("comment", "until_s"),
    [
        ("", None),
        ("rack 12, new board in March", None),
        ("[[srobust-drain-permit until=1763686100]]", 1763686100.0),
        ("rack 12 [[srobust-drain-permit until=1763686100]]", 1763686100.0),
        ("[[srobust-drain-permit until=1763686100]] rack 12", 1763686100.0),
        ("[[srobust-drain-permit until=1763685999]]", None),
        ("[[srobust-drain-permit until=1763686000]]", None),
        ("[[srobust-drain-permit until=9999999999]]", None),
        ("[[srobust-drain-permit until=-1]]", None),
        ("[[srobust-drain-permit until=soon]]", None),
        ("[[srobust-drain-permit until=1763686100", None),
        ("[[srobust-drain-permit until=1763686100]] [[srobust-drain-permit until=1]]", None),
        ("[[srobust-drain-permit until=1763686100]] [[srobust-no-drain-permit]]", None),
        ("[[srobust-no-drain-permit]]", None),
    ],
)
def test_a_permit_is_valid_only_until_its_time(comment: str, until_s: float | None) -> None:
    """Absent, expired, malformed or too far ahead: no permit. The last of two counts; old markers mean the same."""
    permit = None if until_s is None else DrainPermit(until_s)
    assert parse(comment, NOW_S) == permit
    assert parse(comment.replace("drain-permit", "leave"), NOW_S) == permit


def test_markers_of_version_0_1_are_read_and_replaced() -> None:
    """A daemon and the scripts of its nodes are not updated in the same second."""
    old = "rack 12 [[srobust-leave until=1763686100 most=9]]"
    assert parse(old, NOW_S) == DrainPermit(1763686100.0, 9)
    assert of_daemon(old)
    assert of_daemon("[[srobust-no-leave]]")
    assert parse(f"{old} [[srobust-no-leave]]", NOW_S) is None
    assert render_permit(None, old) == "rack 12 [[srobust-no-drain-permit]]"
    assert render_permit(NOW_S + 90, "[[srobust-no-leave]]") == "[[srobust-drain-permit until=1763686090]]"


def test_own_words_stay_and_markers_do_not_pile_up() -> None:
    """An admin's words survive renewal and withdrawal."""
    once = render_permit(NOW_S + 60, "rack 12")
    assert once == "rack 12 [[srobust-drain-permit until=1763686060]]"
    assert render_permit(NOW_S + 90, once) == "rack 12 [[srobust-drain-permit until=1763686090]]"
    assert render_permit(None, once) == "rack 12 [[srobust-no-drain-permit]]"
    assert (
        render_permit(NOW_S + 90, "rack 12 [[srobust-no-drain-permit]]")
        == "rack 12 [[srobust-drain-permit until=1763686090]]"
    )
    assert render_permit(None) == "[[srobust-no-drain-permit]]"


@pytest.mark.parametrize(
    ("comment", "written"),
    [
        ("", False),
        ("rack 12, srobust-drain-permit", False),
        ("rack 12 [[srobust-drain-permit until=1]]", True),
        ("[[srobust-drain-permit until=1763686100 most=3]]", True),
        (render_permit(None, "rack 12"), True),
        ("[[srobust-later-versions]]", True),
        ("[[srobust-drain-permit unt", True),
        ("[[srobust-leave unt", True),
    ],
)
def test_whether_a_daemon_has_been_here(comment: str, written: bool) -> None:
    """Also where its permit has expired, was refused, or cannot be read: a node may act alone only without a daemon."""
    assert of_daemon(comment) is written
    assert parse(render_permit(None, comment), NOW_S) is None


@given(st.text(max_size=200), st.integers(1, int(MAX_PERMIT_S)))
def test_what_is_rendered_is_parsed(words: str, ahead_s: int) -> None:
    """Whatever an admin wrote, a rendered permit is read back, and a withdrawn one is not."""
    until_s = NOW_S + ahead_s
    rendered = render_permit(until_s, words)
    assert parse(rendered, NOW_S) == DrainPermit(until_s)
    assert render_permit(None, rendered) == render_permit(None, words)


@given(st.text(max_size=300))
def test_any_comment_is_read_without_an_error(comment: str) -> None:
    """A comment is anybody's text."""
    permit = parse(comment, NOW_S)
    assert permit is None or permit.until_s > NOW_S


@given(st.text(max_size=200), st.integers(0, 999_999))
def test_the_bound_is_rendered_and_parsed(words: str, most: int) -> None:
    """Beside the time; a permit that names no bound has none."""
    rendered = render_permit(NOW_S + 60, words, most)
    assert parse(rendered, NOW_S) == DrainPermit(NOW_S + 60, most)
    assert parse(render_permit(NOW_S + 60, rendered), NOW_S) == DrainPermit(NOW_S + 60)
    assert parse(render_permit(None, rendered), NOW_S) is None
