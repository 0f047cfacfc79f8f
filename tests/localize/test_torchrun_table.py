"""torchrun's own table of a failure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from torchrun_output import RECORDED, table

from slurm_robust.localize.torchrun_table import read_tables


def test_a_table_tells_each_workers_end() -> None:
    """Signal, exit code, and which was the first, of both nodes' tables, behind the labels of `srun --label`, too."""
    text = table(3, 2, -9, "SIGKILL") + table(0, 1, 1)
    for lines in (text.splitlines(), [f"0: {line}" for line in text.splitlines()]):
        found = {w.rank: (w.code, w.signal, w.first) for w in read_tables(lines)}
        assert found == {3: (None, 9, True), 2: (None, 15, False), 0: (1, 0, True), 1: (None, 15, False)}


def test_with_record_the_last_words_stand_in_the_table() -> None:
    """Each worker's own, in the order of the traceback; the root's time comes first."""
    second, first = read_tables(RECORDED.splitlines())
    assert (first.rank, first.first, first.at_s) == (3, True, second.at_s - 1)
    assert "RuntimeError: CUDA error: unspecified launch failure" in first.words
    assert any("Connection closed" in line for line in second.words)


def test_a_torn_table_tells_nothing_wrong() -> None:
    """Output of two nodes may be mixed: a worker without its rank or its exit code is left out."""
    lines = table(3, 2, -9, "SIGKILL").splitlines()
    torn = [line for line in lines if not line.startswith("  rank      : 3")]
    assert [w.rank for w in read_tables(torn)] == [2]


@given(st.lists(st.text(max_size=60) | st.sampled_from(RECORDED.splitlines()), max_size=40))
def test_no_output_is_an_error(lines: list[str]) -> None:
    """Whatever a program prints."""
    read_tables(lines)
