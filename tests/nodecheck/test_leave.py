from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.drain_permit import MAX_LEAVE_S, of_daemon, parse_leave, parse_most, render_leave

NOW_S = 1_763_686_000.0


@pytest.mark.parametrize(
    ("comment", "until_s"),
    [
        ("", None),
        ("rack 12, new board in March", None),
        ("[[srobust-leave until=1763686100]]", 1763686100.0),
        ("rack 12 [[srobust-leave until=1763686100]]", 1763686100.0),
        ("[[srobust-leave until=1763686100]] rack 12", 1763686100.0),
        ("[[srobust-leave until=1763685999]]", None),
        ("[[srobust-leave until=1763686000]]", None),
        ("[[srobust-leave until=9999999999]]", None),
        ("[[srobust-leave until=-1]]", None),
        ("[[srobust-leave until=soon]]", None),
        ("[[srobust-leave until=1763686100", None),
        ("[[srobust-leave until=1763686100]] [[srobust-leave until=1]]", None),
        ("[[srobust-leave until=1763686100]] [[srobust-no-leave]]", None),
        ("[[srobust-no-leave]]", None),
    ],
)
def test_leave_holds_only_while_it_is_given(comment: str, until_s: float | None) -> None:
    """Absent, over, malformed or implausibly far ahead: no leave. Of two, the last counts."""
    assert parse_leave(comment, NOW_S) == until_s


def test_own_words_stay_and_markers_do_not_pile_up() -> None:
    """An admin's words survive renewal and withdrawal."""
    once = render_leave(NOW_S + 60, "rack 12")
    assert once == "rack 12 [[srobust-leave until=1763686060]]"
    assert render_leave(NOW_S + 90, once) == "rack 12 [[srobust-leave until=1763686090]]"
    assert render_leave(None, once) == "rack 12 [[srobust-no-leave]]"
    assert render_leave(NOW_S + 90, "rack 12 [[srobust-no-leave]]") == "rack 12 [[srobust-leave until=1763686090]]"
    assert render_leave(None) == "[[srobust-no-leave]]"


@pytest.mark.parametrize(
    ("comment", "written"),
    [
        ("", False),
        ("rack 12, srobust-leave", False),
        ("rack 12 [[srobust-leave until=1]]", True),
        ("[[srobust-leave until=1763686100 most=3]]", True),
        (render_leave(None, "rack 12"), True),
        ("[[srobust-later-versions]]", True),
        ("[[srobust-leave unt", True),
    ],
)
def test_whether_a_daemon_has_been_here(comment: str, written: bool) -> None:
    """Also where its leave is over, was refused, or cannot be read: whoever acts alone must be sure."""
    assert of_daemon(comment) is written
    assert parse_leave(render_leave(None, comment), NOW_S) is None


@given(st.text(max_size=200), st.integers(1, int(MAX_LEAVE_S)))
def test_what_is_rendered_is_parsed(words: str, ahead_s: int) -> None:
    """Whatever an admin wrote, a rendered leave is read back, and a withdrawn one is not."""
    until_s = NOW_S + ahead_s
    rendered = render_leave(until_s, words)
    assert parse_leave(rendered, NOW_S) == until_s
    assert render_leave(None, rendered) == render_leave(None, words)


@given(st.text(max_size=300))
def test_any_comment_is_read_without_an_error(comment: str) -> None:
    """A comment is anybody's text."""
    until_s = parse_leave(comment, NOW_S)
    assert until_s is None or until_s > NOW_S


@given(st.text(max_size=200), st.integers(0, 999_999))
def test_the_bound_is_rendered_and_parsed(words: str, most: int) -> None:
    """Beside the time; a leave that names no bound, or was withdrawn, has none."""
    rendered = render_leave(NOW_S + 60, words, most)
    assert parse_most(rendered) == most
    assert parse_leave(rendered, NOW_S) == NOW_S + 60
    assert parse_most(render_leave(NOW_S + 60, rendered)) is None
    assert parse_most(render_leave(None, rendered)) == parse_most(render_leave(None, words))
