"""Step timings as the file that `srobust localize --timings` reads."""

from __future__ import annotations

import gzip
import json
import math
from array import array
from collections.abc import Sequence

from slurm_robust.localize.slow.timings import StepTimings


def packed(timings: StepTimings) -> bytes:
    """JSON lines, one for the layout and one for each rank, gzipped."""
    lines = []
    if timings.layout:
        order = f",order={timings.layout_order}" if timings.layout_order else ""
        sizes = ",".join(f"{kind}={size}" for kind, size in timings.layout.items())
        lines.append(json.dumps({"layout": sizes + order}))
    for at, rank in enumerate(timings.ranks):
        fields = {
            "rank": rank,
            "node": timings.nodes.get(rank, ""),
            "steps": timings.steps,
            "total_s": _column(timings.total, at),
            "compute_s": _column(timings.compute, at),
            "communication_s": _column(timings.communication, at),
        }
        lines.append(json.dumps({key: value for key, value in fields.items() if value is not None}))
    return gzip.compress(("\n".join(lines) + "\n").encode(), 6, mtime=0)


def _column(rows: Sequence[array[float]], at: int) -> list[float | None] | None:
    """One rank's values; None where there is none of this kind."""
    values = [row[at] if math.isfinite(row[at]) else None for row in rows]
    return values if any(value is not None for value in values) else None
