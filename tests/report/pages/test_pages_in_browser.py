"""The pages in a real browser: no error, nothing to scroll sideways, contrast, sorting, copying; no scripts needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from example_pages import AT_S, hostile_facts, incident_folder, month_facts, view_of

from slurm_robust.cli.diagnosis.incident_files import read_sources
from slurm_robust.report.pages.incident_assemble import incident_view
from slurm_robust.report.pages.incident_page import incident_html
from slurm_robust.report.pages.page import html

POOR_CONTRAST = """
(() => {
  const number = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = number(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    // What stands on a colour of its own is outlined or dark on light by design.
    if (!own || ["SCRIPT", "TITLE", "title", "desc"].includes(e.tagName) || !e.getClientRects().length) continue;
    if (/\\b(on|on-cell|sign|halo)\\b/.test(e.getAttribute("class") || "")) continue;
    const style = getComputedStyle(e);
    const c = number(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [light(c), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(`${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`);
  }
  return [...poor];
})()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of three pages."""
    place = tmp_path_factory.mktemp("pages")
    folder = incident_folder(place)
    sources = read_sources(folder, {}, place / "incident.html")
    pages = {
        "month": html(view_of(month_facts())),
        "hostile": html(view_of(hostile_facts())),
        "incident": incident_html(incident_view(sources, AT_S + 99, 7200)),
    }
    for name, text in pages.items():
        (place / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (Path(place) / f"{name}.html").as_uri() for name in pages}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here: its start is what costs."""
    with Browser() as started:
        yield started


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        *(("month", width, dark) for width in (360, 1280) for dark in (False, True)),
        *(("incident", width, dark) for width in (360, 1280) for dark in (False, True)),
        ("hostile", 360, True),
    ],
)
def test_a_page_fits_and_can_be_read(
    browser: Browser, files: dict[str, str], name: str, width: int, dark: bool
) -> None:
    """No console error, nothing loaded, nothing beside the window, and contrast of 4.5 at the least."""
    page = browser.open(files[name], width=width, dark=dark)
    assert page.console_errors() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate(POOR_CONTRAST) == []
    dark_ground = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"
    assert dark_ground is dark
    page.close()


@pytest.mark.parametrize("name", ["month", "incident"])
def test_a_screen_reader_finds_its_way(browser: Browser, files: dict[str, str], name: str) -> None:
    """Landmarks, one heading of the first level, and a name for every picture and region."""
    page = browser.open(files[name])
    tree = page.tree()
    roles = [role for role, _ in tree]
    assert roles.count("main") == 1
    assert {"navigation", "banner", "heading", "table", "link"} <= set(roles)
    nameless = [
        role for role, said in tree if role in ("image", "img", "region", "navigation", "link", "button") and not said
    ]
    assert nameless == []
    page.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.close()


def test_a_phone_shows_captions_whole(browser: Browser, files: dict[str, str]) -> None:
    """A table may be wider than the phone and is scrolled in its box; its caption is read without that, and after."""
    page = browser.open(files["month"], width=390, height=844)
    cut = """[...document.querySelectorAll(".table")].filter((box) => {
      box.scrollLeft = 60;
      const seen = box.getBoundingClientRect(), caption = box.querySelector("caption");
      if (!caption || !seen.width) return false;
      const range = document.createRange();
      range.selectNodeContents(caption);
      return [...range.getClientRects()].some((r) => r.right > seen.right + 1 || r.left < seen.left - 1);
    }).map((box) => box.querySelector("caption").textContent)"""
    assert page.evaluate("document.querySelectorAll('.table caption').length") > 5
    assert page.evaluate(cut) == []
    page.close()


def test_tables_can_be_sorted_and_copied(browser: Browser, files: dict[str, str]) -> None:
    """By a click on a heading; what is copied are the numbers themselves, and no formula of a spreadsheet."""
    page = browser.open(files["month"])
    column = "[...document.querySelectorAll('#time tbody tr')].map((row) => Number(row.cells[1].dataset.v))"
    found = page.evaluate(column)
    button = "document.querySelectorAll('#time thead button')[1]"
    page.evaluate(f"{button}.click()")
    assert page.evaluate(column) == sorted(found)
    page.evaluate(f"{button}.click()")
    assert page.evaluate(column) == sorted(found, reverse=True)
    assert page.evaluate(f"{button}.parentElement.getAttribute('aria-sort')") == "descending"
    page.evaluate("document.querySelector('#time tbody td').textContent = '=1+1'")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("document.querySelector('#time .table + button').click()")
    lines = page.wait_for("window.copied").splitlines()
    assert lines[0] == "time went into\tshare\tin, GPU hours"
    assert lines[1].split("\t")[0] == "'=1+1"
    assert float(lines[1].split("\t")[1]) == max(found)
    assert page.evaluate("document.querySelector('#time [role=status]').textContent") == " copied"
    page.close()


def test_no_script_is_needed(browser: Browser, files: dict[str, str]) -> None:
    """Without any, all is there but the buttons."""
    page = browser.open(files["month"], scripts=False)
    roles = [role for role, _ in page.tree()]
    assert roles.count("table") > 5
    assert "button" not in roles
    page.close()
