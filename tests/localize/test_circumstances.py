"""A saved incident judges as the live one did: missing nodes, ends of ranks and signals are kept with its stacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from localize_scenes import capture, evidence, rank, signal, waiting

from slurm_robust.cli.commands.localize import command
from slurm_robust.core.model import Conclusion, SignalKind
from slurm_robust.localize.circumstances import (
    CIRCUMSTANCES_FILE,
    CircumstancesError,
    decode,
    encode,
    saved_round,
    unseen_rank,
)
from slurm_robust.localize.evidence import Evidence, RaisedException, RankExit
from slurm_robust.localize.evidence_folder import read_folder
from slurm_robust.localize.judge import judge
from slurm_robust.localize.stacks import archive
from slurm_robust.localize.stacks.archive import NodeArchive

NODES = {n: f"n{n}" for n in range(4)}
LOST = ("RuntimeError: Connection closed by peer [10.0.0.1]:41234",)
WORDS = ("Traceback (most recent call last):", "TypeError: forward() got an unexpected keyword argument")
NOTE = {"kind": "xid", "urgency": "note", "gpus": [1], "port": "", "code": 31}


RAISED = ("[rank1]: Traceback (most recent call last):", "[rank1]: TypeError: boom")


def save(folder: Path, live: Evidence, *, slow: str = "", clock_s: float = -3.0) -> None:
    """An incident's folder as a supervisor writes it; the nodes' clocks are a little behind its own."""
    told = []
    for number, taken in enumerate(live.captures, 1):
        (folder / f"stacks-{number}").mkdir(parents=True)
        for node in sorted({r.node for r in taken.ranks} - {slow}):
            members = tuple(r for r in taken.ranks if r.node == node)
            body = archive.encode(NodeArchive(node, taken.at_s + clock_s, number, members))
            (folder / f"stacks-{number}" / f"{node}.json.gz").write_bytes(body)
        told.append(saved_round(number, taken, [slow]))
    folder.mkdir(exist_ok=True)
    (folder / CIRCUMSTANCES_FILE).write_bytes(encode(live, told, {}))


def looks(*missing: str, times: int = 3) -> Evidence:
    """All wait but for the nodes that do not answer."""
    ranks = [waiting(n) for n in range(4) if f"n{n}" not in missing]
    return evidence(*(capture(1000.0 + 10 * t, *ranks, missing=missing) for t in range(times)), nodes=NODES)


@pytest.mark.parametrize(
    "live",
    [
        looks("n2"),
        replace(looks(), exits=(RankExit(2, "n2", 999.0, None, 9), RankExit(0, "n0", 1001.0, 1, 0, LOST))),
        replace(looks(), exits=(RankExit(1, "n1", 999.0, 1, 0, WORDS),)),
        replace(looks(), exits=(RankExit(1, "n1", 999.0, 1, 0, (), oom_killed=True),)),
        replace(looks(), exits=(RankExit(1, "n1", 999.0, 1, 0, (), shared_lines=WORDS),)),
        replace(looks(), exits=(RankExit(1, "n1", 900.0, 0),), last_sign_s=990.0),
        replace(looks(), raised={1: RaisedException(990.0, RAISED)}),
        replace(looks(), node_signals=(signal(SignalKind.NODE_FAULT, "n3", "XID 79"),)),
        replace(looks(), node_signals=(replace(signal(SignalKind.NODE_FAULT, "n3", "XID 31"), evidence=NOTE),)),
        evidence(exits=[RankExit(2, "n2", 999.0, None, 9)], nodes=NODES),
        evidence(*(capture(t, *(waiting(n) for n in (0, 1)), rank(2)) for t in (1.0, 9.0)), nodes=NODES),
    ],
    ids=["missing", "killed", "own error", "memory", "shared lines", "finished", "raised", "fault", "note",
         "no capture", "gone"],
)  # fmt: skip
def test_a_saved_incident_judges_as_the_live_one(tmp_path: Path, live: Evidence) -> None:
    """The same conclusion, suspects, confidence and words, from the folder alone."""
    save(tmp_path / "incident", live)
    saved = read_folder(tmp_path / "incident")
    assert saved.problems == ()
    assert judge(saved.evidence) == judge(live)
    assert judge(live).reason


def test_a_node_that_was_only_slow_is_not_missing(tmp_path: Path) -> None:
    """Its ranks were unseen in a round, and nothing was held against it: so it is when read again."""
    ranks = [waiting(0), waiting(1), unseen_rank(2, "n2", 77), waiting(3)]
    live = evidence(*(capture(1000.0 + 10 * t, *ranks) for t in range(3)))
    save(tmp_path / "incident", live, slow="n2")
    assert judge(read_folder(tmp_path / "incident").evidence) == judge(live)


def test_a_rank_of_a_large_job_is_no_stray(tmp_path: Path) -> None:
    """Of 20,000 ranks only a few left archives: the saved number of ranks says that they belong there."""
    live = replace(evidence(capture(1000.0, waiting(0), waiting(19_999))), world_size=20_000)
    save(tmp_path / "incident", live)
    saved = read_folder(tmp_path / "incident")
    assert saved.problems == ()
    assert saved.evidence.captures == live.captures


def test_the_command_reads_an_incidents_folder(tmp_path: Path) -> None:
    """`srobust localize --stacks INCIDENT` names the node that did not answer."""
    save(tmp_path / "incident", looks("n2"))
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path / "incident"), "--json"])
    found = json.loads(done.stdout)
    assert [s["node"] for s in found["suspects"]] == ["n2"]
    assert found["corroborated"] is True


def test_a_bad_file_spoils_nothing(tmp_path: Path) -> None:
    """Garbled, of another version, of another shape: said, and the stacks are judged without it."""
    save(tmp_path / "incident", looks())
    path = tmp_path / "incident" / CIRCUMSTANCES_FILE
    for body in (b"{", b"\xff", b'{"v": 9, "world_size": 4}', b'{"v": 1, "world_size": 99999999}',
                 b'{"v": 1, "world_size": 2, "nodes": {"n1": "0-9"}}',
                 b'{"v": 1, "world_size": 2, "nodes": {"n": "x"}}',
                 b"[" * 3000):  # fmt: skip
        path.write_bytes(body)
        with pytest.raises(CircumstancesError):
            decode(body)
        saved = read_folder(tmp_path / "incident")
        assert any(CIRCUMSTANCES_FILE in problem for problem in saved.problems)
        assert judge(saved.evidence).conclusion is Conclusion.UNDETERMINED
