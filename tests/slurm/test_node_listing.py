"""The cheap listing of nodes, as sinfo prints it."""

from __future__ import annotations

import pytest

from slurm_robust.slurm import values
from slurm_robust.slurm.client import NodeLine
from slurm_robust.slurm.errors import SlurmParseError
from slurm_robust.slurm.node_listing import parse

SEP = "QqQ"


def sinfo(*rows: tuple[str, ...]) -> str:
    """The rows as sinfo prints them."""
    return "".join("".join(f"{field}{SEP}" for field in row) + "\n" for row in rows)


def test_nodes_that_are_alike_share_a_line() -> None:
    """State and flags as `scontrol show node` has them; nothing is no text."""
    plain = ("idle", "none", "Unknown", "Unknown", "(null)", "(null)", "gpu:0")
    out = ("allocated+drain", "srobust: XID 79, GPU 3", "root", "1763686800", "rack 7", "a [b]", "gpu:a:2(IDX:0-1)")
    found = parse(sinfo((*plain, "n[1-3,5]"), (*out, "n4"), (*plain, "m1")), SEP)
    reason = ("srobust: XID 79, GPU 3", "root", 1763686800, "rack 7", "a [b]", 2)
    assert found == {
        NodeLine("IDLE"): frozenset(("n1", "n2", "n3", "n5", "m1")),
        NodeLine("ALLOCATED", frozenset(("DRAIN",)), *reason): frozenset(("n4",)),
    }


def test_a_reason_of_several_lines_is_one_reason() -> None:
    """Administrators may write what they like; it can add no line."""
    row = ("down", "one\nidle n[1-9]\n", "root", "1763686800", "(null)", "(null)", "(null)", "n1")
    assert list(parse(sinfo(row), SEP).values()) == [frozenset(("n1",))]


def test_no_nodes() -> None:
    """An answer without a line."""
    assert parse("", SEP) == {}
    assert parse("\n", SEP) == {}


@pytest.mark.parametrize(
    "text", ["x", f"idle{SEP}none{SEP}", sinfo(("i dle", *["none"] * 6, "n1")), "PARTITION AVAIL\n"]
)
def test_what_is_no_listing_is_an_error(text: str) -> None:
    """Cut short, another form, no state: nothing is guessed."""
    with pytest.raises(SlurmParseError):
        parse(text, SEP)


def test_no_more_than_the_last_listing_is_remembered() -> None:
    """A busy site of ten thousand nodes has other long lists in each listing: they would fill the memory."""
    row, last = ("idle", "none", "Unknown", "Unknown", "(null)", "(null)", "gpu:0"), dict[str, frozenset[str]]()
    before = values._remembered.cache_info().currsize
    for number in range(3, 13):
        found = parse(sinfo((*row, f"n[1,{number}]")), SEP, last)
        assert last == {f"n[1,{number}]": frozenset(("n1", f"n{number}"))}
        assert parse(sinfo((*row, f"n[1,{number}]")), SEP, last) == found
    assert values._remembered.cache_info().currsize == before
