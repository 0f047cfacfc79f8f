"""Tests of two nodes together on a real Slurm, with real PyTorch; a hook puts faults into the ranks."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import pytest
from daemon_scene import Scene
from helpers import wait_until

from slurm_robust.daemon.store.journal import Journal
from slurm_robust.daemon.store.node_ledger import NodeLedger, Quarantine
from slurm_robust.daemon.store.pair_ledger import PairLedger
from slurm_robust.policy.cluster.tested_pairs import PairTest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

FAULTY = Path(__file__).parents[3] / "stoptime" / "faulty_ranks"
SECTIONS: dict[str, dict[str, object]] = {
    "nodetest": {"tests": ["pairs", "alignment"], "budget_s": 90},
    "standby": {"size": 2},
    "breaker": {"max_partition_share": 1.0},
}


def two_jobs_suspect(scene: Scene, node: str) -> None:
    """What the journal holds after the claims of two jobs, the first of which came to a strike."""
    journal = Journal.open(scene.state_dir)
    ledger = NodeLedger(journal)
    now_s = time.time()  # a quarantine that only claims keep ends after a while
    ledger.strike(Quarantine(node, "first", 901, "line-901", "hang", now_s, now_s, user="ann"), 4e9, "passed")
    ledger.quarantine(Quarantine(node, "second", 902, "line-902", "hang", now_s, now_s, user="ann"))
    journal.close()


def ended(scene: Scene) -> list[PairTest]:
    """Tests that have ended."""
    journal = scene.journal()
    try:
        return PairLedger(journal).ended(0.0)
    finally:
        journal.close()


def of_suspect(scene: Scene, node: str) -> list[PairTest]:
    """Those of this suspect."""
    return [t for t in ended(scene) if t.node == node and t.purpose == "suspect"]


def left_quarantine(scene: Scene, node: str) -> bool:
    """True once nothing holds it any more."""
    journal = scene.journal()
    try:
        return not NodeLedger(journal).quarantines() and not [r for r in scene.ours() if r.endswith(f"-{node}")]
    finally:
        journal.close()


def test_standby_nodes_meet_and_a_suspect_of_two_jobs_is_proven_with_one(scene: Scene) -> None:
    """n3 and n4 are tested together, then n1 with one of them, in a reservation that lies over quarantine and pool."""
    two_jobs_suspect(scene, "n1")
    # n2 has a job: only the pool is left.
    job = scene.submit("-w", "n2", "--exclusive", script="sleep 600")
    scene.running(job)
    scene.start(**SECTIONS)
    wait_until(lambda: of_suspect(scene, "n1"), 120, f"n1 was tested\n{scene.tail()}")
    wait_until(lambda: left_quarantine(scene, "n1"), 30, f"n1 is back\n{scene.tail()}")
    found = ended(scene)
    assert [(t.purpose, t.result, t.reason) for t in found] == [("standby", "passed", ""), ("suspect", "passed", "")]
    assert {*found[0].nodes} == {"n3", "n4"}
    assert found[1].partner in ("n3", "n4")
    assert not scene.node("n1").drained
    journal = scene.journal()
    done = {a.kind: a.done_at_s for a in journal.actions("second")}
    assert len(NodeLedger(journal).strikes("n1", 0)) == 2
    journal.close()
    assert done["test_pair"] is not None
    assert done["release_pair"] is not None
    assert "unproven" not in scene.log.read_text()
    assert list(scene.ours()) == [t.key for t in found if t.purpose == "standby"]
    assert scene.job(job).state == "RUNNING"


def sections(folder: Path, faults: dict[str, str]) -> dict[str, dict[str, object]]:
    """The configuration of a daemon whose tests run in a Python with these faults."""
    python = folder / "python"
    values = {"PYTHONPATH": str(FAULTY), "FAULTY_RANKS": json.dumps(faults), "FAULTY_RANKS_FOLDER": str(folder)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    python.write_text("\n".join(("#!/bin/sh", *lines, f'exec {shlex.quote(sys.executable)} "$@"\n')))
    python.chmod(0o755)
    return {**SECTIONS, "nodetest": {**SECTIONS["nodetest"], "python": str(python)}}


@pytest.mark.variant
@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        ({"n1,n3": "corrupt", "n1,n4": "corrupt"}, "wrong numbers in all_gather"),
        ({"n1": "bit"}, "came to 2 different results"),
    ],
    ids=["links", "bit"],
)
def test_a_suspect_that_fails_with_two_standby_nodes_is_drained(
    scene: Scene, tmp_path: Path, faults: dict[str, str], sentence: str
) -> None:
    """It garbles what it sends, or computes a wrong bit: two nodes alone cannot tell, so it meets both."""
    two_jobs_suspect(scene, "n1")
    scene.running(scene.submit("-w", "n2", "--exclusive", script="sleep 600"))
    scene.start(**sections(tmp_path, faults))
    wait_until(lambda: scene.node("n1").drained, 200, f"n1 is drained\n{scene.tail()}")
    assert [t.result for t in of_suspect(scene, "n1")] == ["failed together"] * 2
    reason = scene.node("n1").reason
    assert reason.startswith("srobust: fails with n3 and with n4, which passed their own tests: ")
    assert sentence in reason
    assert not any(scene.node(name).drained for name in ("n2", "n3", "n4"))


@pytest.mark.variant
def test_without_pytorch_the_full_check_counts_and_nobody_is_held_back(scene: Scene, tmp_path: Path) -> None:
    """Told once; the standby nodes count as checked."""
    scene.start(**sections(tmp_path, {"n3": "no_torch"}))
    wait_until(lambda: ended(scene), 120, f"a test has ended\n{scene.tail()}")
    assert [t.result for t in ended(scene)] == ["not tested"]
    wait_until(lambda: "could not be tested together: " in scene.log.read_text(), 10, "told")
    assert "PyTorch" in ended(scene)[0].reason
    assert not any(node.drained for node in scene.client.nodes())
