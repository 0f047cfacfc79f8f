"""Escaping by construction, and numbers and ticks as people read them."""

from __future__ import annotations

import math
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.report.pages.formats import moment, offset, share, shown
from slurm_robust.report.pages.markdown import plain
from slurm_robust.report.pages.markup import Markup, element, text, visible
from slurm_robust.report.pages.plots.axes import AxisScale, log_bounds, log_ticks, ticks, time_ticks
from slurm_robust.report.pages.view import Unit

ANY_TEXT = st.text(st.characters(), max_size=200)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@given(ANY_TEXT)
def test_any_text_is_one_element_with_one_attribute(raw: str) -> None:
    """As child and as attribute: what comes out is what went in, but for what would work unseen."""
    made = element("p", raw, title=raw)
    tags = _Tags()
    tags.feed(made)
    assert [tag for tag, _ in tags.found] == ["p"]
    assert tags.found[0][1] == {"title": visible(raw)}
    assert unescape(made.removesuffix("</p>").rpartition('">')[2]) == visible(raw)
    made.encode("utf-8")


@given(ANY_TEXT)
def test_what_is_shown_can_be_printed(raw: str) -> None:
    """No control, no mark that turns the direction, no half of a pair."""
    assert visible(raw).isprintable()
    assert plain(raw).isprintable()


def test_markup_is_not_escaped_twice_and_long_text_is_cut() -> None:
    """Children that are markup stay; a name of a megabyte does not."""
    assert element("p", element("b", "<x>")) == "<p><b>&lt;x&gt;</b></p>"
    assert isinstance(element("p"), Markup)
    assert len(text("x" * 1_000_000)) < 2100
    assert element("td", "a", class_="n", data_v="", hidden=None) == '<td class="n" data-v="">a</td>'


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        (None, Unit.COUNT, "–"),
        (float("nan"), Unit.SHARE, "–"),
        (0, Unit.COUNT, "0"),
        (1234, Unit.COUNT, "1,234"),
        (0.9513, Unit.SHARE, "95.1 %"),
        (0.99973, Unit.SHARE, "99.97 %"),
        (0.999999, Unit.SHARE, "> 99.99 %"),
        (1e-7, Unit.SHARE, "< 0.01 %"),
        (1.0, Unit.SHARE, "100 %"),
        (44.2, Unit.SECONDS, "44 s"),
        (-3.0, Unit.SECONDS, "−3.0 s"),
        (1893.2, Unit.GPU_HOURS, "1,893 GPU h"),
        (1795228470, Unit.AT, "2026-11-21 02:34:30"),
        (1e18, Unit.AT, "1e+18 s"),
    ],
)
def test_values_as_people_read_them(value: float | None, unit: Unit, wanted: str) -> None:
    """A dash for what is not known, and never 100 % for nearly all."""
    assert shown(value, unit) == wanted


def test_times_and_offsets() -> None:
    """UTC, and how far the local clock is from it."""
    assert offset(7200) == "UTC+02:00"
    assert offset(-12600) == "UTC-03:30"
    assert moment(None) == "–"
    assert share(0) == "0 %"


@given(st.floats(0, 1e9), st.floats(1e-6, 1e9), st.sampled_from([Unit.COUNT, Unit.SECONDS, Unit.SHARE, Unit.HOURS]))
def test_ticks_lie_within_and_are_few(low: float, span: float, unit: Unit) -> None:
    """At most some more than asked for, rising, within the axis."""
    found = [tick.value for tick in ticks(low, low + span, unit, 5)]
    assert len(found) <= 8
    assert found == sorted(found)
    assert all(low - span * 0.01 <= value <= low + span * 1.01 for value in found)


@given(st.floats(0, 4e9), st.floats(1, 1e10), st.integers(2, 10))
def test_time_ticks_lie_within_and_are_few(from_s: float, span_s: float, most: int) -> None:
    """The same of times."""
    found = time_ticks(from_s, from_s + span_s, most)
    assert len(found) <= most + 2
    assert all(from_s <= tick.value <= from_s + span_s for tick in found)
    assert all(tick.label for tick in found)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8))
def test_a_logarithmic_axis_holds_its_values(values: list[float]) -> None:
    """Bounds around all of them, and at least one tick."""
    low, high = log_bounds(values)
    assert low <= min(values)
    assert high >= max(values)
    assert log_ticks(low, high, Unit.HOURS)
    scale = AxisScale(low, high, 100, 0, log=True)
    assert all(0 <= scale.px(value) <= 100 for value in values)


def test_a_scale_without_a_span_still_has_a_place() -> None:
    """One moment, and no number at all."""
    assert AxisScale(5, 5, 0, 100).px(5) == 50
    assert math.isfinite(AxisScale(0, 1, 0, 100).px(float("nan")))
    assert AxisScale(0, 1, 0, 100).px(1e300) == 100
