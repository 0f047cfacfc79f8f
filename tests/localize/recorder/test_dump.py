"""One dump: what is read of it, and that nothing in it is ever run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pickletools
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder_dumps import WORLD, entry, plain

from slurm_robust.localize.recorder.dump import MAX_DUMP_BYTES, RecorderDumpError, read_dump, read_dumps

FOUR = {WORLD: [0, 1, 2, 3]}
DUMP = plain([entry(9, 5), entry(8, 3, "send 0->2"), entry(7, 4, state="completed")], {0: (5, 4)}, FOUR)


@pytest.mark.parametrize("body", [pickle.dumps(DUMP), json.dumps(DUMP).encode()], ids=["pickle", "json"])
def test_a_dump_is_read(body: bytes) -> None:
    """What is not complete, in the order in which it was enqueued; peers by their world rank."""
    read = read_dump(body, 1)
    assert [(op.name, op.seq, op.peer) for op in read.pending] == [("send 0->2", 3, 2), ("all_reduce", 5, -1)]
    assert read.counters == {0: (5, 4)}
    assert read.groups[WORLD].ranks == (0, 1, 2, 3)
    assert read.last_at_s == pytest.approx(1_700_000_000)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_of_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    """A pickle that would call something is refused by name, and has called nothing."""
    body = pickle.dumps({"entries": [_Bomb(tmp_path / "ran")]}, protocol)
    assert any(op.name in ("GLOBAL", "STACK_GLOBAL") for op, _, _ in pickletools.genops(body))
    with pytest.raises(RecorderDumpError, match=r"it names (posix|os)\.mkdir: .* nothing was run"):
        read_dump(body, 0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "empty"),
        (pickle.dumps(DUMP)[:-40], "not a pickle that can be read"),
        (b'{"entries": [', "not complete JSON"),
        (pickle.dumps([1, 2]), "no list of entries"),
        (pickle.dumps({"version": "1.0", "entries": [{"seq_id": 3}]}), r"version 1\.0: KeyError 'process_group'"),
        (b"(" * 100_000 + b"{", "not a pickle"),
    ],
)
def test_what_is_no_dump_is_a_sentence(body: bytes, why: str) -> None:
    """Half-written files and other versions: an error that says what it is."""
    with pytest.raises(RecorderDumpError, match=why):
        read_dump(body, 0)


def test_a_garbled_number_does_not_take_all_memory() -> None:
    """Found by the test below: a memo index of a billion, which Python's C reader makes an array for, in 45 s."""
    body = pickle.dumps(DUMP)
    noise = b"r\x89\x1b\xabH1\xe0\xe5\xd52\xf7"
    began_s = time.monotonic()
    with contextlib.suppress(RecorderDumpError):
        read_dump(body[:225] + noise + body[225 + len(noise) :], 3)
    read_big = b"\x80\x04N" + b"r" + (3_000_000_000).to_bytes(4, "little") + b"."
    with pytest.raises(RecorderDumpError, match="no list of entries"):
        read_dump(read_big, 3)
    assert time.monotonic() - began_s < 10


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_garbled_dumps_are_errors_or_dumps(noise: bytes, at: int) -> None:
    """Whatever is written over a dump, it is read or refused."""
    body = pickle.dumps(DUMP)
    with contextlib.suppress(RecorderDumpError):
        assert read_dump(body[:at] + noise + body[at + len(noise) :], 3).rank == 3


def test_a_folder_of_dumps(tmp_path: Path) -> None:
    """The rank stands at the end of the name; a bad file never spoils the others, the fuller of two is taken."""
    for name, seq in (("nccl_trace_rank_0", 5), ("nccl_trace_rank_1", 5), ("second-rank-1.json", 6)):
        held = plain([entry(seq, seq)], {0: (seq, 4)}, FOUR)
        body = json.dumps(held).encode() if name.endswith("json") else pickle.dumps(held)
        (tmp_path / name).write_bytes(body)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of no rank")
    with (tmp_path / "nccl_trace_rank_3").open("wb") as stream:
        stream.truncate(MAX_DUMP_BYTES + 1)
    saved = read_dumps(tmp_path)
    assert sorted(saved.dumps) == [0, 1]
    assert saved.dumps[1].pending[0].seq == 6
    told = " ".join(saved.problems)
    assert "nccl_trace_rank_2: not a pickle" in told
    assert "nccl_trace_rank_3: more bytes than a dump can have" in told
    assert "another dump of rank 1" in told


def test_a_folder_without_dumps(tmp_path: Path) -> None:
    """No folder, or nothing in it: an error that says so."""
    with pytest.raises(RecorderDumpError, match="no such folder"):
        read_dumps(tmp_path / "none")
    with pytest.raises(RecorderDumpError, match="no file whose name ends with a rank"):
        read_dumps(tmp_path)
