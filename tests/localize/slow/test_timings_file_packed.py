"""What the supervisor saves is what `localize --timings` reads."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from slow_tables import collect

from slurm_robust.localize.slow.timings_file import packed, read_timings
from slurm_robust.localize.timings import Timing

SECONDS = st.none() | st.floats(0.001, 1e4)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 9)), st.tuples(SECONDS, SECONDS, SECONDS), min_size=1),
    st.sampled_from([{}, {"tp": 2, "dp": 3}]),
)
def test_what_is_written_is_read(
    tmp_path_factory: object, told: dict[tuple[int, int], tuple[float | None, ...]], layout: dict[str, int]
) -> None:
    """Gaps stay gaps, of single values and of whole steps; nothing is a problem."""
    before = collect((Timing(r, s, *values, f"n{r}") for (r, s), values in told.items()), layout)
    path = Path(tmp_path_factory.getbasetemp()) / "timings.jsonl.gz"  # type: ignore[attr-defined]
    path.write_bytes(packed(before))
    if not any(
        math.isfinite(v) for rows in (before.total, before.compute, before.communication) for r in rows for v in r
    ):
        return
    read = read_timings(path)
    assert read.problems == ()
    assert read.timings.layout == layout
    for rows, again in ((before.total, read.timings.total), (before.compute, read.timings.compute)):
        for step, row in zip(before.steps, rows, strict=True):
            for rank, value in zip(before.ranks, row, strict=True):
                if step in read.timings.steps and rank in read.timings.ranks:
                    found = again[read.timings.steps.index(step)][read.timings.ranks.index(rank)]
                    assert found == value or (math.isnan(found) and math.isnan(value))
                else:
                    assert math.isnan(value)
