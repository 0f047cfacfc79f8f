"""Each kind of bad input: a sentence that names the file and the reason, and a verdict from what is usable."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from localize_scenes import WORKER_LOCK, in_loader, process, two_rounds, waiting
from recorder_dumps import WORLD, entry, plain

from slurm_robust.cli.commands.localize import command
from slurm_robust.localize.stacks.archive import NodeArchive, encode

RANKS = (waiting(0), waiting(1), in_loader(2, process(WORKER_LOCK)), waiting(3))


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    """Two rounds of four nodes; rank 2's loader hangs."""
    return two_rounds(tmp_path / "stacks", RANKS)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Dumps of four ranks; rank 2 never joined."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(4):
        pending = [] if rank == 2 else [entry(9, 5)]
        told = plain([entry(8, 4, state="completed"), *pending], {0: (4 if rank == 2 else 5, 4)}, {WORLD: range(4)})
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(told))
    return folder


def run(*options: str | Path) -> Result:
    """`srobust localize`."""
    return CliRunner().invoke(command, [str(o) for o in options])


def named(result: Result) -> list[str]:
    """Nodes of the suspects, or ranks where no node is known."""
    found: dict[str, Any] = json.loads(result.stdout)
    return [s["node"] or f"rank {s['ranks'][0]}" for s in found["suspects"]]


@pytest.mark.parametrize("option", ["--stacks", "--flight-recorder"])
def test_empty_folder(tmp_path: Path, option: str) -> None:
    """Named, and why nothing can be made of it; so is a folder that is not there."""
    for folder in (tmp_path, tmp_path / "none"):
        done = run(option, folder)
        assert done.exit_code == 64
        assert str(folder) in done.stderr
        assert "no " in done.stderr


def test_half_written_json(stacks: Path, dumps: Path) -> None:
    """An archive cut off, a py-spy dump cut off, a recorder's JSON cut off: each named; the others are judged."""
    whole = (stacks / "n0.r2.json.gz").read_bytes()
    (stacks / "n0.r2.json.gz").write_bytes(whole[: len(whole) // 2])
    (stacks / "rank-7.json").write_text('[{"pid": 1, "thr')
    (dumps / "dump_9.json").write_text('{"entries": [{"record_id"')
    done = run("--stacks", stacks, "--flight-recorder", dumps, "--json")
    for name, why in (("n0.r2.json.gz", "half written"), ("rank-7.json", "half written"), ("dump_9.json", "JSON")):
        assert any(name in line and why in line for line in json.loads(done.stdout)["problems"]), name
    assert named(done) == ["n2"]


def test_dumps_of_other_versions(dumps: Path) -> None:
    """Unknown keys are passed over; a shape that is not understood is named with its version; the others count."""
    newer = pickle.loads((dumps / "dump_0").read_bytes())
    newer["version"], newer["something_new"] = "3.0", {"a": 1}
    newer["entries"] = [{**e, "colour": "blue"} for e in newer["entries"]]
    (dumps / "dump_0").write_bytes(pickle.dumps(newer))
    strange = plain([{"id": 7, "state": "started"}], {}, {})
    (dumps / "dump_3").write_bytes(pickle.dumps({**strange, "version": "9.9"}))
    done = run("--flight-recorder", dumps, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert "dump_3" in problem
    assert "9.9" in problem
    assert named(done) == ["rank 2"]
    assert any("rank 3" in line for line in json.loads(done.stdout)["missing"])


def test_a_malicious_pickle(dumps: Path, tmp_path: Path) -> None:
    """It is named, what it names is told, and nothing of it is run."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    (dumps / "dump_1").write_bytes(pickle.dumps({"entries": [Evil()]}))
    done = run("--flight-recorder", dumps, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert "dump_1" in problem
    assert "nothing was run" in problem
    assert not (tmp_path / "run").exists()
    assert named(done) == ["rank 2"]


def test_duplicate_ranks(stacks: Path, dumps: Path) -> None:
    """Two archives claim rank 1, two dumps are of rank 1: each told with who claims it, and one of them counts."""
    (stacks / "n9.r2.json.gz").write_bytes(encode(NodeArchive("n9", 1010.0, 2, (replace(waiting(1), node="n9"),))))
    (dumps / "other_1").write_bytes((dumps / "dump_1").read_bytes())
    done = run("--stacks", stacks, "--flight-recorder", dumps, "--json")
    problems = json.loads(done.stdout)["problems"]
    assert any("rank 1 is twice in round 2: on n1 and on n9" in line for line in problems)
    assert any("other_1" in line and "another dump of rank 1" in line for line in problems)
    assert named(done) == ["n2"]


def test_ranks_beyond_the_layout(stacks: Path) -> None:
    """Which they are; the verdict stands without the layout."""
    done = run("--stacks", stacks, "--layout", "tp=2", "--world-size", "5", "--json")
    assert (
        "layout: tp=2 does not divide 5 ranks: each replica of the model takes 2" in json.loads(done.stdout)["missing"]
    )
    done = run("--stacks", stacks, "--layout", "tp=2,dp=1", "--json")
    assert "layout: tp=2,dp=1 makes 2 ranks; beyond it: ranks 2-3" in json.loads(done.stdout)["missing"]
    assert named(done) == ["n2"]


def test_a_layout_that_does_not_multiply_out(stacks: Path) -> None:
    """The reason, under *missing* where it does not fit these ranks; wrong usage where it fits none, or is none."""
    done = run("--stacks", stacks, "--layout", "tp=3", "--json")
    assert any("does not divide 4 ranks" in line for line in json.loads(done.stdout)["missing"])
    assert named(done) == ["n2"]
    for layout, why in (("tp=2,ep=4,dp=2,etp=2", "does not divide the 4 ranks"), ("two by two", "not understood")):
        refused = run("--stacks", stacks, "--layout", layout)
        assert refused.exit_code == 2
        assert why in refused.stderr


def test_an_answer_of_nccl_and_a_layout_that_are_garbled(stacks: Path) -> None:
    """Beside the stacks in an incident's folder: each named, and the stacks are judged."""
    (stacks / "ras-1.json").write_text('{"at_s": 1')
    (stacks / "layout.txt").write_text("\x00\xff")
    done = run("--stacks", stacks, "--json")
    problems = json.loads(done.stdout)["problems"]
    assert any("ras-1.json" in line and "RAS" in line for line in problems)
    assert any("layout.txt" in line for line in problems)
    assert named(done) == ["n2"]


def test_a_recorder_in_an_archive_that_is_garbled(stacks: Path) -> None:
    """What the agent could not read is told with its rank; stacks of the same archive count."""
    ranks = [{"rank": 5, "recorder": {"dump": {"entries": 7}}}, {"rank": 6, "recorder": {"error": "a link"}}]
    told = {"v": 1, "node": "n5", "at_s": 1010.0, "round": 2, "stacks": {}, "ranks": ranks}
    (stacks / "n5.r2.json.gz").write_text(json.dumps(told))
    problems = json.loads(run("--stacks", stacks, "--json").stdout)["problems"]
    assert any("rank 5" in line and "no list of entries" in line for line in problems)
    assert any("rank 6" in line and "a link" in line for line in problems)
