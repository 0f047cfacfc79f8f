"""The flame graph: whole XML, boxes as wide as ranks are many, nothing executed and nothing broken by odd names."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
from localize_scenes import WORKER_LOCK, capture, in_loader, process, rank, waiting

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.flame_graph import HAIR_PX, WIDTH_PX, render_svg
from slurm_robust.localize.stacks.merge import tree_json

SPACE = "{http://www.w3.org/2000/svg}"


def boxes(text: str) -> dict[str, float]:
    """Title of each box → its width in pixels."""
    root = ET.fromstring(text)
    found = {}
    for group in root.iter(f"{SPACE}g"):
        title, rect = group.find(f"{SPACE}title"), group.find(f"{SPACE}rect")
        assert title is not None
        assert title.text
        assert rect is not None
        found[title.text] = float(rect.get("width", "0"))
    return found


def test_widths_are_ranks() -> None:
    """Three ranks wait and one loads data: three quarters and one quarter of the width."""
    found = boxes(render_svg(capture(1.0, waiting(0), waiting(1), in_loader(2, process(WORKER_LOCK)), waiting(3))))
    wide = next(width for title, width in found.items() if "all_reduce" in title)
    narrow = next(width for title, width in found.items() if "_next_data" in title)
    assert abs(wide - 0.75 * WIDTH_PX) < 1
    assert abs(narrow - 0.25 * WIDTH_PX) < 1
    assert any(title.endswith("3 of 4 ranks: 0-1,3") for title in found)


def test_one_of_ten_thousand_can_be_seen() -> None:
    """The odd one out is at least a hair wide."""
    crowd = [waiting(n, node=f"n{n // 8}") for n in range(9999)]
    found = boxes(render_svg(capture(1.0, *crowd, in_loader(9999, process(WORKER_LOCK)))))
    assert min(width for title, width in found.items() if title.endswith("ranks: 9999")) >= HAIR_PX - 0.5


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=4))
def test_any_name_makes_whole_xml(names: list[str]) -> None:
    """Functions called `<lambda>`, quotes, control characters: still one document, without a script."""
    stack = tuple(StackFrame(name, f"/tmp/{name}", 1) for name in names)
    text = render_svg(capture(1.0, rank(0, process(stack)), missing=["n<9>"]), title=names[0])
    root = ET.fromstring(text)
    assert not [e for e in root.iter() if e.tag.endswith("script")]


def test_empty() -> None:
    """No rank: an empty picture."""
    assert boxes(render_svg(capture(1.0))) == {}


def test_tree_for_tools() -> None:
    """Callers come before what they call, and the ranks of a caller are those of its calls."""
    trees = tree_json(capture(1.0, waiting(0), waiting(1), in_loader(2, process(WORKER_LOCK))))
    assert [t["processes"] for t in trees] == ["rank", "data loader"]
    calls = trees[0]["calls"]
    assert calls[0]["ranks"] == "0-2"
    assert calls[0]["caller"] == -1
    assert all(call["caller"] < place for place, call in enumerate(calls))
    assert {call["ranks"] for call in calls} == {"0-2", "0-1", "2"}
