"""Pieces of pages: escaped, the same as HTML and as JSON, and differences that lead from one board to the other."""

from __future__ import annotations

import itertools
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import healthy, stormy

from slurm_robust.daemon.api.dashboard import home, incident
from slurm_robust.daemon.api.dashboard.pieces import with_command
from slurm_robust.daemon.api.dashboard.stages import back_after
from slurm_robust.daemon.api.dashboard.tree import Board, Section, difference, element, everything, html, wire

NOW_S = 1_800_000_000.0
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\u202egnp.exe\x1b[31m\ud800\n"


class Elements(HTMLParser):
    """The tags and attributes that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append(tag)
        self.attributes += attrs


def applied(shown: dict[str, dict[str, Any]], changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the browser's script makes of changes."""
    result = {}
    for name, rows in shown.items():
        change = changes.get(name, {})
        now = {**rows, **change.get("rows", {})}
        result[name] = {key: now[key] for key in change["order"]} if "order" in change else now
    return result


def plain(board: Board) -> dict[str, dict[str, Any]]:
    """All rows of a board as JSON, in order."""
    return {name: {k: wire(row) for k, row in section.rows.items()} for name, section in board.sections.items()}


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from(("x", "y", HOSTILE)), max_size=7), min_size=2)
)
def test_differences_lead_from_each_board_to_the_next(states: list[dict[str, str]]) -> None:
    """Whatever comes, goes, moves or changes: a browser that applies all differences shows the last board."""
    boards = [Board("t", {"s": Section("s", {k: element("li", v) for k, v in rows.items()})}) for rows in states]
    shown = plain(boards[0])
    for old, new in itertools.pairwise(boards):
        changes = difference(old, new)
        assert changes is not None
        shown = applied(shown, changes)
        assert [list(rows) for rows in shown.values()] == [list(s.rows) for s in new.sections.values()]
        assert shown == plain(new)


def test_text_from_outside_is_never_markup() -> None:
    """Names, users, reasons and nodes full of tags, quotes, controls and a change of direction."""
    state = stormy(NOW_S, 64)
    for row in (*state["jobs"], *state["waiting"]):
        row.update(name=HOSTILE, user=HOSTILE, reason=HOSTILE, nodes=HOSTILE)
    for row in state["nodes"]:
        row.update(reason=HOSTILE, job=HOSTILE, gres=HOSTILE, name=HOSTILE + row["name"])
    for row in state["incidents"]:
        row.update(user=HOSTILE, key=HOSTILE, id=HOSTILE, reason=HOSTILE, report=HOSTILE)
        row["verdict"].update(why=HOSTILE, suspects=[HOSTILE])
    state["cluster"] = HOSTILE
    for board in (home.board(state), incident.board(state["incidents"][0])):
        for section in board.sections.values():
            for row in section.rows.values():
                text = html(row)
                seen = Elements(text)
                assert not {"script", "img"} & set(seen.tags)
                assert not [name for name, _ in seen.attributes if name.startswith("on")]
                assert not [v for name, v in seen.attributes if name == "href" and not str(v).startswith("/incidents/")]
                assert all(c.isprintable() for c in text)
                text.encode()


def test_every_row_says_its_name() -> None:
    """By `data-key` or `id`: so the browser's script knows the rows that the server made."""
    state = stormy(NOW_S, 64)
    for board in (
        home.board(state),
        home.board(healthy(NOW_S, 8)),
        home.board({}),
        incident.board(state["incidents"][0]),
    ):
        for section in board.sections.values():
            for key, row in section.rows.items():
                attributes = dict(row.attributes)
                assert attributes.get("data-key", attributes.get("id")) == key


def test_what_is_the_same_is_not_made_again() -> None:
    """Ten thousand squares that have not changed are the objects of the last board; one that has is sent alone."""
    state = healthy(NOW_S, 300)
    first = home.board(state)
    state["nodes"][7].update(node_state="drained", owner="srobust", reason="XID 79")
    second = home.board(state)
    changes = difference(first, second)
    assert changes is not None
    assert list(changes["grid-0"]["rows"]) == ["n-gpu00008"]
    assert "order" not in changes["grid-0"]


def test_a_new_hardware_class_asks_for_the_page_anew() -> None:
    """The grids are other ones then."""
    state = healthy(NOW_S, 8)
    first = home.board(state)
    state["nodes"][0]["gres"] = "gpu:b200:8"
    assert difference(first, home.board(state)) is None
    assert set(everything(first)) == set(first.sections)


@pytest.mark.parametrize("state", [{}, {"nodes": [{"name": "n1"}], "jobs": [{}], "incidents": [{}], "standby": [{}]}])
def test_an_empty_or_older_snapshot_is_a_page(state: dict[str, Any]) -> None:
    """Nothing there yet, or rows that lack what they have today."""
    assert home.board(state).sections["open"].rows


def test_a_need_ends_with_the_command_to_type() -> None:
    """Which one tap selects, without the words before it."""
    text = "the breaker is open (9 drains): once the cause is known, srobust breaker reset"
    shown = with_command(text)
    assert html(shown[1] or "") == '<code class="command">srobust breaker reset</code>'
    assert shown[0] == "the breaker is open (9 drains): once the cause is known, "
    assert with_command("a sentence without any") == ["a sentence without any"]


def test_back_after_is_counted_from_the_fault_to_the_first_new_step() -> None:
    """As in the report; a job that only runs again has not made its first new step."""
    times = {"fault": 100.0, "suspected": 103.0, "accepted": 108.0, "running": 111.0}
    assert back_after({"times": {**times, "first_new_step": 112.0}}) == "12.0 s"
    assert back_after({"times": times}) == ""
