"""`srobust test`: wrong usage, and what cannot be tested."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from slurm_robust.cli.commands.test import _complete, _gres
from slurm_robust.cli.main import cli
from slurm_robust.slurm.client import Node


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what to test: --job ID, or -w NODES"),
        (["--job", "1", "--tests", "pears"], "--tests: pears: expected some of in-node,pairs,alignment"),
        (["--job", "1", "--tests", ","], "--tests: no test"),
        (["--job", "1", "--budget", "5"], "--budget 5 is too small"),
        (["--job", "1", "--reservation", "pool"], "leave out --job"),
        (["--jobs"], "No such option"),
    ],
)
def test_wrong_usage_has_a_code_of_its_own(words: list[str], sentence: str) -> None:
    """64: 2 means that the tests could not tell."""
    done = CliRunner().invoke(cli, ["test", *words])
    assert done.exit_code == 64
    assert sentence in done.output


def test_names_of_tests_are_completed_behind_a_comma() -> None:
    """As the other lists are."""
    assert [item.value for item in _complete(None, None, "pairs,al")] == ["pairs,alignment"]  # type: ignore[arg-type]


def test_as_many_gpus_as_every_node_has_are_asked_for() -> None:
    """Slurm's text of a node's GPUs, with type, sockets and other resources; none where a node has none."""
    nodes = [Node("n1", "IDLE", gres="gpu:h100:8(S:0-1),nvme:2"), Node("n2", "IDLE", gres="gpu:4")]
    assert _gres(nodes) == "gpu:4"
    assert _gres([*nodes, Node("n3", "IDLE")]) == ""
