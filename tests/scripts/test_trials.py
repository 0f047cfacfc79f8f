"""What scripts/trials takes for right, what it reads, and the table that it draws."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "trials"))

import trial_cells  # noqa: E402 (scripts are no package)
import trial_nanogpt  # noqa: E402
import trial_notes  # noqa: E402
import trial_reports  # noqa: E402
import trial_rules  # noqa: E402
import trial_site  # noqa: E402
import trial_table  # noqa: E402
from trial_rules import ACCEPTABLE, RIGHT, WRONG, Facts, judge  # noqa: E402

CLEAN = Facts("ddp", "clean", "run", state="COMPLETED", exit_code="0:0")
KILL = Facts(
    "ddp", "kill", "run", fault_node="n2", fault_rank=1, fault_step=24, acted=True, road="seat", blamed=("n2",),
    evicted=("n2",), taken_out=("n2",), launches=1, begun_at=(21,), first_new_step_s=25.0, nodes_after=("n1", "n3"),
    state="COMPLETED", exit_code="0:0", waited_s=34.0, suspected_s=2.6, decided_s=11.0,
)  # fmt: skip
STOP = replace(KILL, fault="stop", road="", acted=False, evicted=(), taken_out=(), launches=0, begun_at=())
ERROR = replace(KILL, fault="error", blamed=(), evicted=(), taken_out=(), launches=0, begun_at=(), strikes=1)
ERROR = replace(ERROR, first_new_step_s=None, state="FAILED", exit_code="1:0", road="stop")
CUDA = replace(KILL, fault="cuda", strikes=2, launches=2)
DISK = replace(ERROR, fault="disk", fault_node="", messages="no space left on device below ckpt")
DEAD = replace(KILL, fault="node")


@pytest.mark.parametrize(
    ("facts", "word", "why"),
    [
        (CLEAN, RIGHT, ""),
        (replace(CLEAN, acted=True), WRONG, "nothing was broken"),
        (replace(CLEAN, taken_out=("n1",)), WRONG, "n1"),
        (replace(CLEAN, state="FAILED"), WRONG, "did not complete"),
        (KILL, RIGHT, ""),
        (replace(KILL, struck=False), WRONG, "never came about"),
        (replace(KILL, first_new_step_s=None, acted=False), WRONG, "nothing was done"),
        (replace(KILL, evicted=("n2", "n3")), WRONG, "n3 suffered"),
        (replace(KILL, taken_out=("n3",)), WRONG, "n3 suffered"),
        (replace(KILL, blamed=("n3",), evicted=(), taken_out=()), WRONG, "n3 was named"),
        (replace(KILL, blamed=("n2", "n3")), ACCEPTABLE, "n3 was named, too"),
        (replace(KILL, blamed=(), evicted=(), taken_out=()), ACCEPTABLE, "n2 was not named"),
        (replace(KILL, begun_at=(1,)), WRONG, "began at step 1"),
        (replace(KILL, begun_at=(1,), fault_step=8), RIGHT, ""),
        (replace(KILL, first_new_step_s=200.0), ACCEPTABLE, "200 s"),
        (replace(KILL, launches=2), ACCEPTABLE, "2 launches"),
        (replace(KILL, state="FAILED"), WRONG, "did not complete"),
        (STOP, RIGHT, ""),
        (replace(STOP, launches=1), ACCEPTABLE, "once more"),
        (replace(STOP, taken_out=("n2",)), WRONG, "n2 suffered"),
        (replace(STOP, first_new_step_s=None), WRONG, "nothing was done"),
        (ERROR, RIGHT, ""),
        (replace(ERROR, launches=1), ACCEPTABLE, "once more"),
        (replace(ERROR, launches=2), WRONG, "2 times more"),
        (replace(ERROR, blamed=("n2",)), WRONG, "n2 suffered"),
        (replace(ERROR, exit_code="93:0"), WRONG, "93"),
        (replace(ERROR, over=False), WRONG, "had not stopped"),
        (CUDA, RIGHT, ""),
        (replace(CUDA, launches=3), ACCEPTABLE, "3 launches"),
        (replace(CUDA, launches=1, strikes=1), RIGHT, ""),
        (replace(CUDA, strikes=3), WRONG, "3 times"),
        (replace(CUDA, nodes_after=("n2",)), WRONG, "never left"),
        (DISK, RIGHT, ""),
        (replace(DISK, messages="ranks 0-2 raised RuntimeError"), WRONG, "no message says"),
        (replace(DISK, launches=1), ACCEPTABLE, "once more"),
        (replace(DISK, launches=2), WRONG, "2 times more"),
        (replace(DISK, evicted=("n1",)), WRONG, "n1 suffered"),
        (DEAD, RIGHT, ""),
        (replace(DEAD, nodes_after=("n1", "n2")), WRONG, "which is dead"),
    ],
)
def test_rules(facts: Facts, word: str, why: str) -> None:
    """Each fault has its own rule, and what is not right says why."""
    judgement = judge(facts)
    assert judgement.word == word, judgement
    assert why in judgement.why


def test_every_fault_has_a_rule() -> None:
    """And no rule is left over."""
    assert set(trial_rules._RULES) == set(trial_cells.FAULTS)


def test_cells_are_chosen_by_name() -> None:
    """All of them, one, or with `*` for any; what names nothing is said to."""
    everything = trial_cells.chosen([])
    assert len(everything) == len(set(everything)) == 5 * 8 * 2
    assert [cell.name for cell in trial_cells.chosen(["hf/kill/run"])] == ["hf/kill/run"]
    assert len(trial_cells.chosen(["*/kill/*", "hf/kill/run"])) == 10
    assert len(trial_cells.chosen(["hf"])) == 16
    with pytest.raises(ValueError, match="--only hf/kil names no trial"):
        trial_cells.chosen(["hf/kil"])


@pytest.mark.parametrize("cell", trial_cells.all_cells(), ids=lambda cell: cell.name)
def test_batch_scripts(cell: trial_cells.Cell) -> None:
    """Only one of the two ways names srobust, and nothing is left to be filled in."""
    script = trial_cells.batch_script(cell, "/t", "/py", "/programs", "")
    words = trial_cells.sbatch_words(cell, "/t")
    assert ("srobust run" in script) == (cell.way == "run")
    assert ("--robust" in words) == (cell.way == "spank")
    assert not any(mark in script for mark in ("{python}", "{folder}", "{programs}", "{program}"))


def notes(*lines: dict[str, Any]) -> trial_notes.Notes:
    """As ranks write them."""
    return trial_notes.read([*(json.dumps(line) for line in lines), '{"at_s": 1, "st'])


def start(at_s: float, rank: int, node: str, launch: str) -> dict[str, Any]:
    """A rank's own start."""
    return {"at_s": at_s, "rank": rank, "node": node, "started": 100 + rank, "launch": launch}


def step(at_s: float, number: int) -> dict[str, Any]:
    """One of rank 0."""
    return {"at_s": at_s, "rank": 0, "node": "n1", "step": number}


def test_notes_tell_what_came_after_the_fault() -> None:
    """The first step beyond the one that was reached counts, not those that are made again."""
    read = notes(
        start(1, 0, "n1", "0.0"), start(1, 1, "n2", "0.0"), step(2, 1), step(3, 2), step(4, 3),
        start(10, 0, "n1", "1.0"), start(10, 1, "n3", "1.0"), step(11, 2), step(12, 3), step(13, 4),
    )  # fmt: skip
    assert read.launches == ["0.0", "1.0"]
    assert read.step_at(4.5) == 3
    assert read.first_new_step(4.5) == (13, 4)
    assert read.steps_begun_at(4.5) == [2]
    assert {rank: one.node for rank, one in read.ranks("1.0").items()} == {0: "n1", 1: "n3"}


def test_notes_of_a_job_that_did_not_go_on() -> None:
    """Steps that the first launch still made are none of a new one; a launch without a step says so."""
    read = notes(start(1, 0, "n1", "0.0"), step(2, 1), step(3, 2))
    assert read.first_new_step(2.5) is None
    read = notes(start(1, 0, "n1", "0.0"), step(2, 1), start(5, 0, "n1", "0.2"), start(7, 0, "n1", "0.4"), step(8, 1))
    assert read.steps_begun_at(3) == [0, 1]
    assert notes().steps_begun_at(3) == []
    assert notes({"at_s": 3, "rank": 1, "node": "n2", "struck": "cuda"}).strikes == ((3, "n2"),)


def test_what_is_told_after_the_fault() -> None:
    """Only what comes after it counts; a plan that merely waits is no action."""
    story = [
        {"at_s": 5, "kind": "suspected", "text": "before"},
        {"at_s": 12, "kind": "suspected", "text": "no progress for 2 s"},
        {"at_s": 13, "kind": "captured", "text": "stacks"},
        {"at_s": 14, "kind": "suspect", "text": "rank 1", "node": "n2", "ranks": [1]},
        {"at_s": 15, "kind": "decided", "text": "seat: n2", "road": "seat", "evict": ["n2"]},
    ]
    reported = trial_reports.facts(story, [], 10)
    assert reported["detected"] == "no progress for 2 s"
    assert (reported["suspected_s"], reported["decided_s"], reported["road"]) == (2, 5, "seat")
    assert (reported["blamed"], reported["evicted"], reported["captures"], reported["acted"]) == (
        ("n2",),
        ("n2",),
        1,
        True,
    )
    waiting = [{"at_s": 12, "kind": "decided", "text": "waiting", "road": "alert_only"}]
    assert not trial_reports.facts(waiting, [], 10)["acted"]


def test_a_node_that_the_daemon_lost() -> None:
    """The wrapper may be dead with it: the daemon's own incident says what was done."""
    lost = {
        "kind": "node_lost", "opened_at_s": 20, "times": {"accepted": 21}, "reason": "resumed",
        "verdict": {"suspects": ["n2"], "why": "n2 is down"}, "plan": {"road": "seat", "reason": "n2", "evict": ["n2"]},
    }  # fmt: skip
    reported = trial_reports.facts([], [lost], 10)
    assert (reported["suspected_s"], reported["decided_s"], reported["road"], reported["evicted"]) == (
        10,
        11,
        "seat",
        ("n2",),
    )
    assert reported["detected"] == "n2 is down"
    assert reported["acted"]


def result(facts: Facts) -> dict[str, Any]:
    """A line of the results."""
    judgement = judge(facts)
    name = f"{facts.program}/{facts.fault}/{facts.way}"
    return {"cell": name, "judgement": judgement.word, "why": judgement.why, "resumed_by_hand": "", **asdict(facts)}


def test_table() -> None:
    """A cell that was done again counts as it came out last, and stands in the document between the marks."""
    lines = [json.dumps(result(one)) for one in (replace(KILL, acted=False, first_new_step_s=None), CLEAN, KILL)]
    drawn = trial_table.drawn(trial_table.newest(lines))
    assert drawn.startswith("2 trials: 2 right, 0 acceptable, 0 wrong; 78 not done.")
    row = next(line for line in drawn.splitlines() if "25.0 s" in line)
    assert row.startswith("| plain torch DDP | 2.6 s | 11.0 s | 25.0 s | step 21 | n2 (fault on n2) | seat | n2 out |")
    document = f"# T\n\n{trial_table.BEGIN}\nold\n{trial_table.END}\n\nmore\n"
    filled = trial_table.fill(document, drawn)
    assert row in filled
    assert "old" not in filled
    assert filled.endswith("\n\nmore\n")
    assert trial_table.fill(filled, drawn) == filled
    with pytest.raises(ValueError, match="needs one line"):
        trial_table.fill("# T", drawn)


def test_nanogpt_is_only_told_that_there_is_no_gpu(tmp_path: Path) -> None:
    """Three places that name the GPU are replaced; another nanoGPT than that is refused."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "model.py").touch()
    (checkout / "configurator.py").touch()
    (checkout / "train.py").write_text("\n".join(trial_nanogpt._NO_GPU))
    trial_nanogpt.lay_out(checkout, tmp_path / "one")
    assert (tmp_path / "one" / "train.py").read_text().split("\n") == list(trial_nanogpt._NO_GPU.values())
    assert (tmp_path / "one" / "data" / "words" / "train.bin").stat().st_size > 10000
    (checkout / "train.py").write_text("")
    with pytest.raises(ValueError, match="0 times"):
        trial_nanogpt.lay_out(checkout, tmp_path / "two")


def test_a_dead_node_takes_only_its_own_slurms_processes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Slurm of the same machine may have a node of that name, and jobs on it."""
    conf = "/etc/slurm/slurm.conf"
    monkeypatch.setenv("SLURM_CONF", conf)
    monkeypatch.setattr(trial_site, "call", lambda *_: "AuthType = auth/munge\nClusterName             = plain\n")
    ours = {"SLURMD_NODENAME": "nX7", "SLURM_CLUSTER_NAME": "plain", "SLURM_CONF": conf}
    others = [{**ours, "SLURM_CLUSTER_NAME": "dev"}, {**ours, "SLURM_CONF": "/tmp/slurm.conf"}]
    started = [subprocess.Popen(["/bin/sleep", "60"], env=env) for env in (ours, *others)]
    try:
        assert trial_site.processes_of("nX7") == [started[0].pid]
    finally:
        for process in started:
            process.kill()
            process.wait()
