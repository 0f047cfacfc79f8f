import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from localize_scenes import (
    ALL_REDUCE,
    SYNC_BUFFERS,
    WORKER_IDLE,
    WORKER_LOCK,
    capture,
    in_loader,
    process,
    rank,
    repeated,
    waiting,
)

from slurm_robust.cli.commands.localize import command
from slurm_robust.localize.judge import judge
from slurm_robust.localize.stacks.archive import NodeArchive, encode
from slurm_robust.localize.stacks.merge import classes, render_tree
from slurm_robust.localize.verdict_text import to_json, to_text

RANKS = (waiting(0), waiting(1), in_loader(2, process(WORKER_LOCK)), waiting(3, SYNC_BUFFERS), waiting(4))


def save(folder: Path, rounds: int = 2) -> None:
    """The scene as the agents' archives."""
    for number in range(rounds):
        for member in RANKS:
            packed = encode(NodeArchive(member.node, 1000.0 + 5 * number, number + 1, (member,)))
            (folder / f"{member.node}.r{number + 1}.json.gz").write_bytes(packed)


def test_classes_fold_equal_stacks() -> None:
    """Ranks that stand alike are one class, with a folded set; the largest comes first."""
    found = classes(capture(1.0, *RANKS))
    assert [c.ranks for c in found] == ["0-1,4", "2", "3"]
    assert found[0].stack[-1] == "all_reduce (torch/distributed/distributed_c10d.py:3252)"


def test_states_and_gaps_show_in_classes() -> None:
    """A stopped rank is another class than a running one at the same line; so is one without a stack."""
    found = classes(
        capture(
            1.0, rank(0, process(ALL_REDUCE)), rank(1, process(ALL_REDUCE, state="T")), rank(2, process(None)), rank(3)
        )
    )
    assert [c.stack[-1] for c in found][1:] == ["[stopped]", "[no stack: permission denied]", "[no process]"]


def test_a_spin_loop_is_one_place() -> None:
    """Ranks that poll in one collective, each at another line of the loop, are one class; its line is left out."""
    polls = [(*ALL_REDUCE[:-1], replace(ALL_REDUCE[-1], line=line)) for line in (3252, 3254, 3255)]
    ranks = [rank(n, process(stack)) for n, stack in enumerate(polls)]
    (found,) = classes(capture(1.0, *ranks))
    assert (found.ranks, found.stack[-1]) == ("0-2", "all_reduce (torch/distributed/distributed_c10d.py)")
    assert render_tree(capture(1.0, *ranks)).count("all_reduce") == 1
    # Another line of the program is another place.
    other = (*ALL_REDUCE[:1], replace(ALL_REDUCE[1], line=99), *ALL_REDUCE[2:])
    assert len(classes(capture(1.0, *ranks, rank(3, process(other))))) == 2


def test_tree_for_people() -> None:
    """One line a function, the ranks where the road forks, a tree of its own for data loaders."""
    text = render_tree(capture(1.0, *RANKS, missing=["n9"]))
    lines = text.splitlines()
    assert lines[0] == "rank processes of ranks 0-4"
    assert sum("main (u/train.py:57)" in line for line in lines) == 1
    assert any(line.endswith("{0-1,4}") for line in lines)
    assert "data loader processes of rank 2" in lines
    assert "BaseProcess._bootstrap" in text
    assert "DataLoader.__iter__" not in text
    assert lines[-1] == "n9: no answer"


def test_tree_with_one_class_is_a_list() -> None:
    """Nothing is indented where nothing forks."""
    lines = render_tree(capture(1.0, waiting(0), waiting(1))).splitlines()
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {2}


def test_json_of_the_design() -> None:
    """The keys that tools rely on."""
    found = to_json(judge(repeated(*RANKS)))
    assert found["conclusion"] == "culprit"
    assert found["suspects"][0]["node"] == "n2"
    assert found["suspects"][0]["ranks"] == [2]
    assert 0 < found["suspects"][0]["confidence"] < 1
    assert found["classes"][0]["ranks"] == "0-1,4"
    assert isinstance(found["missing"], list)
    json.dumps(found)


def test_text_names_node_rank_and_reason() -> None:
    """What an on-call reads first."""
    first = to_text(judge(repeated(*RANKS))).splitlines()[0]
    assert first.startswith("culprit, weak evidence, corroborated: rank 2 on n2: its data loader")


def test_command(tmp_path: Path) -> None:
    """`srobust localize --stacks DIR`, as text and as JSON, away from any cluster."""
    save(tmp_path)
    (tmp_path / "n7.json.gz").write_bytes(b"half")
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path)])
    assert done.exit_code == 0
    assert "suspect n2 (rank 2)" in done.stdout
    assert "n7.json.gz" in done.stderr
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert (found["conclusion"], found["corroborated"]) == ("culprit", True)
    assert "n7.json.gz" in found["problems"][0]


def test_command_with_missing_ranks(tmp_path: Path) -> None:
    """Ranks that the folder lacks are said to be missing."""
    save(tmp_path)
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--world-size", "8", "--json"])
    assert "no capture of ranks 5-7" in json.loads(done.stdout)["missing"]


def test_command_without_evidence(tmp_path: Path) -> None:
    """An empty folder: exit 64 and a sentence."""
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path)])
    assert done.exit_code == 64
    assert "nothing to localise from" in done.stderr
    assert "where they are, type: srobust localize --stacks FOLDER" in done.stderr


def test_command_with_a_bare_folder(tmp_path: Path) -> None:
    """Wrong usage: the line to type is named, whether it has stacks or dumps."""
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 2
    assert f"Type: srobust localize --stacks {tmp_path}, or --flight-recorder {tmp_path}" in done.stderr


def test_idle_loaders_are_a_tree_too() -> None:
    """Many loaders that wait alike are one line each function."""
    ranks = [in_loader(n, process(WORKER_IDLE)) for n in range(8)]
    assert "data loader processes of ranks 0-7" in render_tree(capture(1.0, *ranks))


def test_command_with_layout_and_picture(tmp_path: Path) -> None:
    """`--layout` names the ranks that left nothing; `--svg` writes one whole document; `--json` carries the tree."""
    save(tmp_path)
    picture = tmp_path / "hang.svg"
    options = ["--stacks", str(tmp_path), "--layout", "tp=2,dp=4", "--svg", str(picture), "--json"]
    found = json.loads(CliRunner().invoke(command, options).stdout)
    assert "no capture of ranks 5-7" in found["missing"]
    assert found["tree"][0]["processes"] == "rank"
    assert picture.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("layout", "exit_code", "words"),
    [
        ("tp=2,pp", 2, "not understood: 'pp'"),
        ("tp=2,dp=2", 0, "beyond it: rank 4"),
        ("tp=2", 0, "does not divide 5 ranks"),
    ],
)
def test_command_with_a_wrong_layout(tmp_path: Path, layout: str, exit_code: int, words: str) -> None:
    """What is no layout is refused; one that does not fit is left out, and the verdict says so."""
    save(tmp_path)
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--layout", layout])
    assert done.exit_code == exit_code
    assert words in done.output


def test_command_cannot_write_the_picture(tmp_path: Path) -> None:
    """The verdict is there all the same, and stderr says why the picture is not."""
    save(tmp_path)
    done = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--svg", str(tmp_path / "no" / "x.svg")])
    assert done.exit_code == 0
    assert "not written: No such file" in done.stderr
    assert "suspect n2" in done.stdout


def test_the_layout_of_an_incident_is_used(tmp_path: Path) -> None:
    """What was known when it was judged counts later on, too; a garbled one is named, and --layout goes before."""
    save(tmp_path)
    (tmp_path / "layout.txt").write_text("tp=2,dp=2\n")
    found = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--json"])
    assert "layout: tp=2,dp=2 makes 4 ranks; beyond it: rank 4" in json.loads(found.stdout)["missing"]
    given = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--json", "--layout", "dp=5"])
    assert not any("layout" in line for line in json.loads(given.stdout)["missing"])
    (tmp_path / "layout.txt").write_text("two by two")
    garbled = CliRunner().invoke(command, ["--stacks", str(tmp_path), "--json"])
    assert any("layout.txt" in line for line in json.loads(garbled.stdout)["problems"])
