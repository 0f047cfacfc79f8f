"""Timings beside other evidence, and `srobust localize --timings`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from slow_tables import table

from slurm_robust.cli.commands.localize import command
from slurm_robust.core.model import Conclusion, Suspect, Verdict
from slurm_robust.localize.evidence import Evidence
from slurm_robust.localize.slow.judge import judge_slowness, weigh, with_timings

SLOW = Verdict(Conclusion.CULPRIT, "rank 3 on n1 computes longer", (Suspect("n1", (3,), 0.9, "slow"),))
HUNG = Verdict(Conclusion.CULPRIT, "rank 5 on n2 is stopped", (Suspect("n2", (5,), 0.9, "stopped"),))
MOVES = Verdict(Conclusion.NONE, "training moves")


def test_who_hangs_goes_before_who_is_slow() -> None:
    """The other is told in the detail, and neither is lost."""
    found = weigh(HUNG, SLOW)
    assert found.suspects == HUNG.suspects
    assert SLOW.reason in found.detail


def test_a_slow_rank_in_a_job_that_moves_is_named() -> None:
    """Nothing hangs: the timings name it."""
    found = weigh(MOVES, SLOW)
    assert found.suspects == SLOW.suspects
    assert MOVES.reason in found.detail


def test_one_alone_is_the_verdict() -> None:
    """Nothing is added; with neither, undetermined."""
    assert weigh(None, SLOW) is SLOW
    assert weigh(HUNG, None) is HUNG
    assert weigh(None, None).conclusion is Conclusion.UNDETERMINED
    assert judge_slowness(Evidence(4, {})) is None


def test_nodes_of_the_evidence_name_the_slow() -> None:
    """Timings without nodes: by number where asked, and what the stacks know goes first."""
    timings = table(16, 30, lambda r, s: 1.2 if r == 6 else 1.0)
    unnamed = type(timings)(timings.ranks, timings.steps, {}, timings.total, timings.compute, timings.communication)
    found = judge_slowness(with_timings(Evidence(16, {6: "big6"}, layout={"dp": 16}), unnamed, 4))
    assert found is not None
    assert [s.node for s in found.suspects] == ["big6"]
    found = judge_slowness(with_timings(Evidence(16, {}), unnamed, 4))
    assert found is not None
    assert [s.node for s in found.suspects] == ["node1"]


def write(path: Path, ranks: int, slow: int) -> Path:
    """A file of thirty steps in which one rank is 10 % slower."""
    timings = table(ranks, 30, lambda r, s: 1.1 if r == slow else 1.0)
    with path.open("w") as file:
        file.write(json.dumps({"layout": {"dp": ranks}}) + "\n")
        for at, rank in enumerate(timings.ranks):
            values = [row[at] for row in timings.compute]
            told = {"rank": rank, "node": timings.nodes[rank], "steps": timings.steps, "compute_s": values}
            file.write(json.dumps(told) + "\n")
        file.write('{"rank": 3, "step')
    return path


def test_the_command_reads_judges_and_tells(tmp_path: Path) -> None:
    """Text for people, JSON for tools; the half-written line is named."""
    path = write(tmp_path / "steps.jsonl", 16, 6)
    done = CliRunner().invoke(command, ["--timings", str(path)])
    assert done.exit_code == 0
    assert "rank 6 on n1 computes" in done.output
    assert "line 18: cut off" in done.output
    told = json.loads(CliRunner().invoke(command, ["--timings", str(path), "--json"]).stdout)
    assert told["conclusion"] == "culprit"
    assert told["suspects"][0]["node"] == "n1"
    assert told["problems"]


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    """No file: exit 64 and its name; no evidence at all: usage."""
    done = CliRunner().invoke(command, ["--timings", str(tmp_path / "none")])
    assert done.exit_code == 64
    assert "none: cannot be read" in done.output
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 2
    assert "--timings FILE" in done.output
