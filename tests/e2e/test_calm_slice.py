"""Fifteen healthy but strange programs at a tenth of their times: none is harmed. scripts/calm runs all of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spank_build import need_compiler

ROOT = Path(__file__).resolve().parents[2]
for _folder in ("calm_campaign", "calm_programs", "trials"):
    sys.path.append(str(ROOT / "scripts" / _folder))

from calm_campaign import Campaign, Limits  # noqa: E402 (scripts are no package)
from calm_catalogue import PROGRAMS  # noqa: E402
from calm_rules import HARMED, PLAIN, ROBUST, RUN  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(300), pytest.mark.begin_early]

BOTH = ("silent-code-3", "search-with-failures", "prepare-or-repair")
"""Run under `srobust run` and under `sbatch --robust`; the others under `srobust run` alone."""
# Most of them need no torch: in a start of a second of processor time nothing of a program's strangeness shows.
SLICE = (
    *BOTH, "forty-minutes-behind", "nan-of-a-stage", "multi-prog-monitor", "missing-program", "c-ring-silent",
    "remote-shell", "one-rank-ends-with-3", "steps-of-one-and-prints-of-another", "helper-stopped-for-a-while",
    "looks-like-srun", "handled-exception", "semaphore-of-licences",
)  # fmt: skip
CELLS = [(name, way) for name in SLICE for way in (RUN, ROBUST) if way == RUN or name in BOTH]


@pytest.fixture(scope="module")
def judged() -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """The line of each run, by program and way. All run side by side on one devcluster."""
    need_compiler()
    with tempfile.TemporaryDirectory(prefix="srobust-calm-slice-") as folder:
        Path(folder).chmod(0o755)
        cells = [(PROGRAMS[name], way) for name in SLICE for way in (PLAIN, RUN, ROBUST)]
        wanted = [cell for cell in cells if cell[1] == PLAIN or (cell[0].name, cell[1]) in CELLS]
        campaign = Campaign(wanted, Path(folder), Limits(nodes=24, at_once=10, scale=0.1))
        campaign.go(lambda _: None)
        yield {(line["program"], line["way"]): line for line in campaign.results}


@pytest.mark.parametrize("name", SLICE)
def test_the_program_does_under_srun_what_it_is_made_for(judged: dict[Any, Any], name: str) -> None:
    """It ends with its declared exit code: else nothing could be compared with it."""
    assert judged[name, PLAIN]["harms"] == []


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_a_healthy_program_is_left_alone(judged: dict[Any, Any], name: str, way: str) -> None:
    """Same exit code, output and starts as with srun, no requeue, no test, no node out of service."""
    line = judged[name, way]
    assert line["judgement"] != HARMED, "\n".join([*line["harms"], *line["looked"]])
