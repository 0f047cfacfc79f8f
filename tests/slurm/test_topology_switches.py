"""Leaf switches of topology.conf."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.slurm.topology import named_leaves, read, shared

TREE = """
# SwitchName=old Nodes=n9
SwitchName=s0 Nodes=n[1,3] LinkSpeed=100
SwitchName=s1 \\
   Nodes=n2,n4
SwitchName=top Switches=s[0-1]
SwitchName=odd Nodes=n[
"""


def test_each_leaf_has_its_nodes_and_a_line_that_cannot_be_read_is_left_out() -> None:
    """In the file's order; comments and switches of switches say nothing."""
    assert tuple(named_leaves(TREE).values()) == (("n1", "n3"), ("n2", "n4"))
    assert list(named_leaves(TREE + "BlockName=b1 Nodes=n[5-6]")) == ["s0", "s1", "b1"]


def test_the_file_lies_beside_slurm_conf(tmp_path: Path) -> None:
    """Without one the nodes keep their order."""
    assert read(str(tmp_path / "slurm.conf")) == ()
    (tmp_path / "topology.conf").write_text(TREE)
    assert len(read(str(tmp_path / "slurm.conf"))) == 2


def test_nodes_that_hang_on_one_switch_name_it() -> None:
    """All of them do, or none is named."""
    leaves = tuple(named_leaves(TREE).values())
    assert shared({"n3"}, leaves) == ("n1", "n3")
    assert shared({"n1", "n2"}, leaves) == ()
    assert shared({"n1"}, ()) == ()
