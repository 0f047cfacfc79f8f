"""Links, headings and files that the documents name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, IDS, PARTS, ROOT, code_lines, section, text_of, without_code


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", DOCUMENTS, **IDS)
def test_links_between_documents_resolve(path: Path) -> None:
    """Every relative link leads to a file of the repository, and to a heading where it names one."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(path.read_text("utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path.name}: {target}"
        assert there.is_relative_to(ROOT), f"{path.name}: {target} leads out of the repository"
        assert not anchor or anchor in anchors(there), f"{path.name}: {target}: no such heading"


def test_functions_that_the_architecture_names_are_there() -> None:
    """`Where is it decided?` names a function behind a file: it is defined there."""
    rows = section("docs/architecture.md", "Where is it decided?")
    named = re.findall(r"\]\(\.\./([^)]+)\), `(\w+)`(?:[^|]*`(_\w+)`)?", rows)
    assert len(named) >= 3
    for path, *functions in named:
        for name in filter(None, functions):
            assert re.search(rf"^def {name}\(", text_of(path), re.MULTILINE), f"{path}: {name}"


def test_every_document_can_be_reached_from_the_readme() -> None:
    """Nobody has to know that a page exists."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        links = re.findall(r"\]\(([^)#\s]+)", without_code(path.read_text("utf-8")))
        todo += [there for t in links if "://" not in t and (there := (path.parent / t).resolve()).is_file()]
    away = {ROOT / "examples" / "README.md", ROOT / "spank" / "README.md"}  # beside what they explain
    assert set(DOCUMENTS) - reached <= away


def test_files_that_the_documents_name_are_there() -> None:
    """In backticks, or typed in a block: `scripts/kill_saves.py`, `python benchmarks/restart.py`."""
    folders = "|".join((*PARTS, "docs", "tests"))
    for path in DOCUMENTS:
        for line in code_lines(path):
            for name in re.findall(rf"(?<![\w/.-])(?:\./)?((?:{folders})/[\w./*-]*\w\*?)", line):
                built = name.startswith("spank/build")
                assert built or list(ROOT.glob(name)), f"{path.name}: {name}"
