"""A page as text: what it shows first, and how long it is."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from log_material import TRACEBACK, healthy, page_of

from slurm_robust.diagnose.log.page import Page, PageEntry, PageTraceback, Place, Speaker, SpeakerLines
from slurm_robust.diagnose.log.render import render

AT = Place(0, 1, 0)


def test_the_most_telling_stays(tmp_path: Path) -> None:
    """In 700 bytes: the traceback and the last step, in order of time; not the chatter."""
    chatter = [f"chatter of {chr(97 + n)} kind" for n in range(26)]
    page = page_of(tmp_path, [*chatter, *healthy(50), *(f"[rank3]: {line}" for line in TRACEBACK)])
    text = render(page, 900)
    assert TRACEBACK[-1] in text
    assert "rank 3" in text
    assert text.index("step 50 loss") < text.index("illegal memory access")
    assert text.index("chatter of a") < text.index("step 50 loss")
    assert "chatter of z" not in text
    assert "entries are left out" in text
    assert "chatter of z" in render(page)


def test_ranks_and_numbers_are_told(tmp_path: Path) -> None:
    """Of many ranks the first ones, and how many there are."""
    text = render(page_of(tmp_path, [f"[rank{n}]: it failed" for n in range(12)]))
    assert "rank 0, rank 1," in text
    assert "and 4 more ×12" in text


def page_with(line: str) -> Page:
    """An entry and a traceback with this line."""
    speakers = (SpeakerLines(Speaker(rank=0), 1, AT, AT),)
    entry = PageEntry(line, line, f"{line} x", "word", speakers, 1, AT, AT)
    return Page((entry,), (PageTraceback((*TRACEBACK[:-1], f"ValueError: {line}"), speakers, 1, AT, AT),))


@given(st.text(max_size=300), st.integers(0, 2000))
def test_it_is_never_too_long(line: str, max_bytes: int) -> None:
    """Not even by a byte, whatever the letters."""
    text = render(page_with(line.encode("utf-8", "replace").decode()), max_bytes)
    assert len(text.encode()) <= max_bytes
