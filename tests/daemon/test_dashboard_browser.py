"""The dashboard in a real Chromium: it loads without an error, keeps itself true, and can be read by everyone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from browser import Browser, Page
from dashboard_server import HttpProcess, http_process
from snapshots import healthy, stormy

SILENT_S = 200.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests."""
    with Browser() as browser:
        yield browser


def text(page: Page, selector: str) -> str:
    """What a person reads there."""
    return str(page.evaluate(f"document.querySelector({selector!r}).innerText"))


def narrow(page: Page) -> bool:
    """True if nothing has to be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_story_from_a_healthy_cluster_to_a_dead_daemon(browser: Browser) -> None:
    """One page that is never loaded again: a storm comes, an incident goes on, the daemon dies and comes back."""
    with http_process() as http:
        http.feed(healthy(time.time()))
        page = browser.open(http.url, width=360, height=740, dark=True)
        assert text(page, "#needs") == "Nothing needs a person now."
        page.evaluate("window.loadedOnce = true")
        began_s = time.monotonic()
        http.feed(stormy(time.time()))
        page.wait_for("document.querySelectorAll('.card').length === 3")
        assert time.monotonic() - began_s < 5
        assert "BREAKER OPEN" in text(page, "#state")
        assert narrow(page)
        assert page.evaluate("document.title") == "(3) atlas"
        state = stormy(time.time())
        card = state["incidents"][0]
        card["times"]["running"] = time.time()
        page.evaluate("document.querySelector('.card a').focus()")
        http.feed(state)
        page.wait_for("document.querySelector('.card .stages').innerText.includes('runs again')")
        assert page.evaluate("document.activeElement.textContent") == "Job 4001 of ann"
        http.feed(stormy(time.time() - SILENT_S))
        page.wait_for("document.querySelector('#alarm').innerText.includes('silent for 3 min')")
        assert page.evaluate("document.title.startsWith('(!)')")
        assert "systemctl status srobustd" in text(page, "#alarm")
        http.feed(healthy(time.time() - SILENT_S))
        page.wait_for("document.querySelectorAll('.card').length === 0")
        assert page.evaluate("document.querySelector('#needs').innerText") == "", "nobody knows that all is well"
        http.feed(healthy(time.time()))
        page.wait_for("document.querySelector('#alarm').innerText === ''")
        assert "Nothing needs a person now" in text(page, "#needs")
        assert page.evaluate("window.loadedOnce")
        assert page.console_errors() == []
        http.end()
        page.wait_for("document.querySelector('#alarm').innerText.includes('No connection')")
        again = HttpProcess(http.port)
        try:
            again.feed(stormy(time.time()))
            page.wait_for("document.querySelectorAll('.card').length === 3")
            page.wait_for("document.querySelector('#alarm').innerText === ''")
            page.reload()
            page.wait_for("document.querySelectorAll('.card').length === 3")
        finally:
            again.end()
        page.close()


def test_reads_well_for_everyone(browser: Browser) -> None:
    """Landmarks, names, order of headings and of focus; grid by keyboard and by touch; colour is never alone."""
    with http_process() as http:
        http.feed(stormy(time.time()))
        page = browser.open(http.url)
        tree = page.tree()
        roles = [role for role, _ in tree]
        for landmark in ("banner", "navigation", "main", "contentinfo", "alert", "status", "list", "table"):
            assert landmark in roles, landmark
        for name in ("Needs a person now", "Incidents under way", "Trainings", "Nodes", "Standby pools"):
            assert ("region", name) in tree
        assert not [role for role, name in tree if role in ("link", "region", "table", "image") and not name]
        page.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.evaluate("document.querySelector('.grid').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
            page.press(key)
        assert text(page, "#tell").startswith("gpu00002: runs a job; job 4000")
        page.evaluate("document.getElementById('n-gpu00031').click()")
        assert "XID 79" in text(page, "#tell")
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        page.evaluate("document.querySelector('.card a').click()")
        page.wait_for("document.querySelector('dl.facts')")
        assert "4001-1" in text(page, "dl.facts")
        assert page.console_errors() == []
        page.go(http.url + "report/")
        page.go(http.url + "incidents/none")
        assert [e for e in page.console_errors() if "404" not in e] == []
        page.close()
        still = browser.open(http.url, width=360, scripts=False)
        assert "XID 79" in text(still, "main")
        assert narrow(still)
        still.close()


def test_on_a_phone_no_outcome_breaks_and_columns_stand_below_each_other(browser: Browser) -> None:
    """Whatever an incident came to, in a row each."""
    state = stormy(time.time())
    shown = state["incidents"][0]
    outcomes = ("alerted", "resumed", "superseded", "stopped", "observed")
    state["incidents"] = [
        {**shown, "key": f"k{n}", "id": f"i{n}", "state": "closed", "outcome": outcome}
        for n, outcome in enumerate(outcomes)
    ]
    with http_process() as http:
        http.feed(state)
        page = browser.open(http.url, width=360)
        page.wait_for("document.querySelectorAll('td[data-label=outcome] .badge').length === 5")
        heights = page.evaluate(
            "[...document.querySelectorAll('td[data-label=outcome] .badge')].map((b) => b.offsetHeight)"
        )
        assert len(set(heights)) == 1
        assert heights[0] < 30, "one line"
        places = "[...document.querySelectorAll('td[data-label=\"back after\"]')].map((c) => c.offsetLeft)"
        assert len(set(page.evaluate(places))) == 1
        assert narrow(page)
        page.close()


def test_a_storm_of_events_does_not_break_it(browser: Browser) -> None:
    """Five hundred snapshots in a second, of five hundred nodes: the page shows the last one."""
    with http_process() as http:
        state = stormy(time.time(), 500)
        http.feed(state)
        page = browser.open(http.url)
        for number in range(500):
            state["at_s"] = time.time()
            state["jobs"][0]["step"] = 700_000 + number
            state["nodes"][number]["node_state"] = ("idle", "active", "seat")[number % 3]
            http.feed(state)
        page.wait_for("document.querySelector('#trainings').innerText.includes('700499')")
        assert page.evaluate("document.getElementById('n-gpu00500').className") == "active"
        assert page.evaluate("document.querySelectorAll('.grid i').length") == 500
        assert page.console_errors() == []
        page.close()
