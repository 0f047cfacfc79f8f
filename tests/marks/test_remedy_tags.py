"""The tag at the end of a drain reason that names the fault's remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.marks.remedy import Remedy, remedy_of, tag, tagged, untagged


@given(st.text(max_size=400), st.none() | st.sampled_from(Remedy), st.integers(60, 200))
def test_a_tag_is_read_as_it_was_written(text: str, remedy: Remedy | None, limit: int) -> None:
    """Whatever the text before it is, also one that ends like a tag: that may come from a job."""
    for given_text in (text, f"{text} [repair reboot]", f"{text} [repair gpu_reset] [job 7]"):
        written = tagged(given_text, remedy, limit)
        assert len(written) <= limit
        assert remedy_of(written) is remedy
        assert remedy_of(f"{written} [job 12]") is remedy
        assert "[repair" not in untagged(written) or "[repair" in text


@pytest.mark.parametrize("text", ["", "[repair format_disk]", f"{tag(Remedy.REBOOT)} and more", "[repair Reboot]"])
def test_what_is_no_tag_names_no_remedy(text: str) -> None:
    """Then nothing is tried."""
    assert remedy_of(f"srobust: {text}") is None
