"""The report as HTML: whole, escaped, small, and true when there is nothing to tell."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from example_pages import hostile_facts, month_facts, view_of
from html_reading import PageReader

from slurm_robust.report.facts import Facts
from slurm_robust.report.pages.as_json import to_json
from slurm_robust.report.pages.document import MAX_DOUBTS
from slurm_robust.report.pages.markdown import markdown
from slurm_robust.report.pages.page import html
from slurm_robust.report.pages.sections.cut import MAX_TABLE_ROWS

BEGIN_S = 1772323200.0


def test_a_month_is_one_whole_page() -> None:
    """Every section with its answer; numbers at the top; what the table says is what JSON says."""
    facts = month_facts()
    view = view_of(facts)
    page = PageReader(html(view)).check()
    for section in view.sections:
        assert section.question in page.text
        assert section.answer in page.text
    assert "All times are UTC. The machine that made this page is at UTC+02:00." in page.text
    told = to_json(view)
    assert told["numbers"]["incidents"] == len(facts.incidents)
    shares = [row["share"] for row in told["sections"]["time"]["rows"]]
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)
    assert len(told["sections"]["trainings"]["rows"]) == 3
    json.dumps(told, allow_nan=False)


def test_a_training_that_was_stopped_is_no_restart() -> None:
    """It has a row among the roads, and is in no sentence about the way back."""
    facts = month_facts()
    first, *others = facts.incidents
    one = view_of(replace(facts, incidents=(replace(first, road="seat"), *(replace(i, road="stop") for i in others))))
    (answer,) = (section.answer for section in one.sections if section.key == "restarts")
    assert answer.startswith("1 restart. The usual road, seat, ")
    none = view_of(replace(facts, incidents=tuple(replace(i, road="stop") for i in facts.incidents)))
    (section,) = (section for section in none.sections if section.key == "restarts")
    assert section.answer == "No training was restarted: each failure was left to a person."
    assert section.table is not None


def test_a_cluster_that_is_hardly_used_is_not_said_to_use_nothing() -> None:
    """A mean below one has its digits."""
    facts = month_facts()
    job = replace(facts.jobs[0], started_at_s=facts.from_s, ended_at_s=facts.from_s + 3600.0, gpus=8)
    view = view_of(replace(facts, jobs=(job,)))
    (answer,) = (section.answer for section in view.sections if section.key == "hours")
    assert re.search(r"\(0\.\d\d GPUs in the mean\)", answer), answer


@pytest.mark.parametrize(
    "facts",
    [
        Facts(BEGIN_S, BEGIN_S + 7 * 86400, BEGIN_S + 7 * 86400),
        Facts(BEGIN_S, BEGIN_S, BEGIN_S),
        replace(month_facts(nodes=8), to_s=BEGIN_S),
        replace(month_facts(nodes=8), incidents=(), drains=(), strikes=()),
    ],
    ids=["nothing", "no time", "before everything", "no incident"],
)
def test_where_there_is_nothing_the_page_says_so(facts: Facts) -> None:
    """A dash or a sentence, never a zero for something unknown, and nothing that breaks."""
    view = view_of(facts)
    page = PageReader(html(view)).check()
    assert "nan" not in page.text
    assert "inf " not in page.text
    assert all(section.answer for section in view.sections)
    if not facts.attempts:
        assert to_json(view)["numbers"]["ettr"] is None
        assert "No supervised training ran in this time" in page.text
    if facts.attempts and facts.to_s > facts.from_s:
        reliability = next(s for s in view.sections if s.key == "reliability")
        assert "No failure was seen; it is longer than" in reliability.answer


def test_times_that_cannot_be_true_are_drawn_within_the_page() -> None:
    """Ends before starts, the year 60,000, negative times: a whole page with numbers that a browser can draw."""
    facts = month_facts(nodes=8)
    first, incident = facts.attempts[0], facts.incidents[0]
    odd = [
        replace(first, times=replace(first.times, **change))
        for change in (
            {"start_at_s": BEGIN_S + 1e6, "end_at_s": BEGIN_S + 10, "eligible_at_s": -5.0},
            {"eligible_at_s": 1e18, "start_at_s": 2e18, "end_at_s": 3e18},
            {"gpus": 0, "nodes": 0},
        )
    ]
    strange = (
        replace(incident, times={"fault": 1e300, "suspected": -1e300, "first_new_step": float("inf")}),
        replace(incident, key="x", opened_at_s=float("nan"), evict=("n",) * 3),
    )
    text = html(view_of(replace(facts, attempts=tuple(odd), incidents=strange)))
    page = PageReader(text).check()
    drawn = [v for tag, attrs in page.tags for k, v in attrs.items() if k in ("x", "y", "width", "height", "d") and v]
    assert not [v for v in drawn if "nan" in v or "inf" in v or "e+" in v]


def test_hostile_names_stay_text() -> None:
    """In every place at once: no tag of theirs, no attribute, no character that works unseen."""
    view = view_of(hostile_facts())
    text = html(view)
    page = PageReader(text).check()
    assert {tag for tag, _ in page.tags} & {"img", "b", "iframe", "object"} == set()
    assert "<script>alert(1)</script>" in page.text
    assert "⟨U+202E⟩" in page.text
    assert not [c for c in text if c != "\n" and not c.isprintable()]
    text.encode("utf-8")
    json.dumps(to_json(view), allow_nan=False)


def test_hostile_names_stay_text_in_markdown() -> None:
    """No HTML, no link, no further column or line, no address that a chat would open."""
    text = markdown(view_of(hostile_facts()))
    unescaped = re.sub(r"\\.", "", text)
    assert not set("<>[]`") & set(unescaped)
    assert "://" not in text
    assert not [c for c in text if c != "\n" and not c.isprintable()]
    tables = [block.splitlines() for block in unescaped.split("\n\n") if block.startswith("|")]
    assert len(tables) > 5
    for lines in tables:
        rows = [line for line in lines if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1


def test_ten_thousand_nodes_stay_readable() -> None:
    """Thousands of incidents are below 2 MB; what is left out is said."""
    facts = month_facts(nodes=10_000, jobs=0, failures_per_day=0.006)
    assert len(facts.incidents) > 1000
    view = view_of(replace(facts, doubts=tuple(f"doubt {n}" for n in range(500))))
    text = html(view)
    assert len(text.encode()) < 2_000_000
    page = PageReader(text).check()
    nodes = next(section for section in view.sections if section.key == "nodes")
    assert nodes.table is not None
    assert len(nodes.table.rows) == MAX_TABLE_ROWS
    assert "more nodes are left out here" in page.text
    assert f"And {len(view.doubts) - MAX_DOUBTS:,} more of these" in page.text
