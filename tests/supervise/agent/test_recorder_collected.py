"""Flight-recorder dumps on their way: asked for by pipe, read apart, reduced, carried in the archive, judged."""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[2] / "localize"))

from recorder_dumps import TENSOR, WORLD, entry, plain  # type: ignore[import-not-found]

from slurm_robust.localize.recorder.align import align
from slurm_robust.localize.recorder.dump import read_dump
from slurm_robust.localize.stacks.archive import decode
from slurm_robust.supervise.agent import recorder
from slurm_robust.supervise.agent.ranks import Rank, StepProcess
from slurm_robust.supervise.agent.recorder import ask, reduced, take

GROUPS = {WORLD: range(64), TENSOR: (3, 1, 2)}


def member(folder: Path, **changed: Any) -> StepProcess:
    """This very process as rank 3, with PyTorch's files in a folder."""
    told = StepProcess(os.getpid(), os.getppid(), 1, "python", 3, 3, "0", 64, 8, f"{folder}/ask-", f"{folder}/dump-")
    return told._replace(**changed)


def whole_dump(pending: int = 2, done: int = 500) -> dict[str, Any]:
    """A dump as PyTorch writes it, with the stack of each operation."""
    frames = [{"name": "forward", "filename": "/opt/env/model.py", "line": n} for n in range(30)]
    entries = [entry(n, n, state="completed") for n in range(done)]
    entries += [entry(done + n, n, "all_gather", group=TENSOR, number=5) for n in range(pending)]
    return plain([{**e, "frames": frames} for e in entries], {0: (done - 1, done - 1), 5: (pending - 1, -1)}, GROUPS)


def test_a_dump_is_reduced_to_what_is_not_complete(tmp_path: Path) -> None:
    """What is judged is the same as of the whole dump, and a few hundred bytes are sent of some megabytes."""
    body = pickle.dumps(whole_dump())
    (tmp_path / "dump-3").write_bytes(body)
    found = take(member(tmp_path), 3, 0.0)
    assert found.error == ""
    sent = json.dumps(found.dump).encode()
    assert len(sent) < 2000 < len(body)
    read = read_dump(sent, 3)
    assert read.written_at_s == pytest.approx((tmp_path / "dump-3").stat().st_mtime)
    assert replace(read, written_at_s=0.0) == read_dump(body, 3)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["completed", "started", "scheduled"]), st.booleans()),
             max_size=30),
    st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True),
)  # fmt: skip
def test_any_dump_means_the_same_when_reduced(told: list[tuple[int, str, bool]], members: list[int]) -> None:
    """Groups in any order of their ranks, any states: read whole or reduced, the dump says the same."""
    entries = [
        {**entry(n, seq, group=TENSOR, number=7, state=state), "retired": gone}
        for n, (seq, state, gone) in enumerate(told)
    ]
    whole = plain(entries, {7: (9, 3)}, {TENSOR: members})
    assert read_dump(json.dumps(reduced(whole)).encode(), 1) == read_dump(pickle.dumps(whole), 1)


def test_a_flood_of_pending_operations_is_cut_at_the_first(tmp_path: Path) -> None:
    """Whoever waits, waits for the first of them; the newest is kept for its time."""
    (tmp_path / "dump-3").write_bytes(pickle.dumps(whole_dump(pending=1500)))
    found = read_dump(json.dumps(take(member(tmp_path), 3, 0.0).dump).encode(), 3)
    assert [op.seq for op in found.pending] == list(range(recorder.MAX_PENDING))
    assert found.counters[5] == (1499, -1)
    assert found.last_at_s == pytest.approx(1_700_000_000)


def test_the_pipe_of_a_rank_that_has_ended_goes(tmp_path: Path) -> None:
    """PyTorch makes it in /tmp by the name that we gave, and leaves it there; whatever else has a name stays."""
    ours, theirs, file = (
        member(tmp_path, dump_pipe=f"{tmp_path}/{stem}") for stem in ("srobust-1-", "own-", "srobust-f-")
    )
    os.mkfifo(tmp_path / "srobust-1-3.pipe")
    os.mkfifo(tmp_path / "own-3.pipe")
    (tmp_path / "srobust-f-3.pipe").touch()
    for told in (ours, theirs, file, ours):
        recorder.remove_pipe(told, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own-3.pipe", "srobust-f-3.pipe"]


def test_an_older_dump_tells_of_another_moment(tmp_path: Path) -> None:
    """A step since it was written, or two minutes: it says nothing of what holds the rank now."""
    path = tmp_path / "dump-3"
    path.write_bytes(pickle.dumps(whole_dump()))
    assert take(member(tmp_path), 3, time.time() + 1) == recorder.Reading()
    long_ago_s = time.time() - recorder.OLDEST_S - 1
    os.utime(path, (long_ago_s, long_ago_s))
    assert take(member(tmp_path), 3, 0.0) == recorder.Reading()


def test_nothing_in_a_dump_is_run(tmp_path: Path) -> None:
    """A pickle that would call something is refused with a sentence; so are half a pickle and a foreign file."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    for body, why in (
        (pickle.dumps({"entries": [Evil()]}), "nothing was run"),
        (pickle.dumps(whole_dump())[:-40], "not a flight-recorder dump"),
        (b"hello", "not a flight-recorder dump"),
        (b'{"entries": [', "not a flight-recorder dump"),
        (pickle.dumps([1, 2]), "not a flight-recorder dump"),
    ):
        (tmp_path / "dump-3").write_bytes(body)
        found = take(member(tmp_path), 3, 0.0)
        assert found.dump is None
        assert why in found.error
        assert str(tmp_path / "dump-3") in found.error
    assert not (tmp_path / "run").exists()


def test_links_and_others_files_are_not_followed(tmp_path: Path) -> None:
    """A link in the dump's place is named and not read; a pipe or folder there neither."""
    (tmp_path / "real").write_bytes(pickle.dumps(whole_dump()))
    (tmp_path / "dump-3").symlink_to(tmp_path / "real")
    assert "dump-3" in take(member(tmp_path), 3, 0.0).error
    (tmp_path / "dump-3").unlink()
    os.mkfifo(tmp_path / "dump-3")
    assert "of another kind" in take(member(tmp_path), 3, 0.0).error
    os.chown(tmp_path / "real", 12345, 12345)
    (tmp_path / "dump-3").unlink()
    (tmp_path / "real").rename(tmp_path / "dump-3")
    assert "belongs to another user" in take(member(tmp_path), 3, 0.0).error


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """Its size is told, and nothing of it is loaded."""
    with (tmp_path / "dump-3").open("wb") as stream:
        stream.truncate(recorder.MAX_FILE_BYTES + 1)
    assert "at most" in take(member(tmp_path), 3, 0.0).error


def test_asking_writes_to_a_pipe_that_is_read_and_to_nothing_else(tmp_path: Path) -> None:
    """A pipe without a reader costs nothing; a plain file in its place stays as it is; no variable: nothing happens."""
    ask(member(tmp_path), 3)
    os.mkfifo(tmp_path / "ask-3.pipe")
    ask(member(tmp_path), 3)
    reader = os.open(tmp_path / "ask-3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    ask(member(tmp_path), 3)
    assert os.read(reader, 128)
    os.close(reader)
    (tmp_path / "ask-3.pipe").unlink()
    (tmp_path / "ask-3.pipe").write_text("mine")
    ask(member(tmp_path), 3)
    assert (tmp_path / "ask-3.pipe").read_text() == "mine"
    assert stat.S_ISREG((tmp_path / "ask-3.pipe").stat().st_mode)
    ask(member(tmp_path, dump_pipe=""), 3)
    assert take(member(tmp_path, dump_stem=""), 3, 0.0) == recorder.Reading()


def test_the_archive_carries_dumps_and_why_there_are_none(tmp_path: Path) -> None:
    """What the agent takes reaches the judge through the node's archive; what it cannot read, as a sentence."""
    from slurm_robust.supervise.agent.capture import CaptureOptions, capture  # noqa: PLC0415 (beside what it needs)

    (tmp_path / "dump-0").write_bytes(pickle.dumps(whole_dump()))
    (tmp_path / "dump-1").write_bytes(b"garbled")
    ranks = []
    for number in (0, 1, 2):
        own = member(tmp_path, rank=number)
        ranks.append(Rank(number, "0", 3, own, (own,)))
    options = CaptureOptions("n1", 2, "/nonexistent", 5.0)
    found = decode(json.dumps(capture(ranks, {}, options)).encode())
    assert set(found.recorder) == {0}
    assert found.recorder[0].pending[0].name == "all_gather"
    assert len(found.problems) == 1
    assert "rank 1" in found.problems[0]
    assert [r.rank for r in found.ranks] == [0, 1, 2]
    quiet = capture(ranks, {}, options._replace(with_recorder=False))
    assert decode(json.dumps(quiet).encode()).recorder == {}


def test_groups_come_back_as_they_were() -> None:
    """Ranges of ranks, forwards, with steps, out of order: the same tuple, whatever their number."""
    for ranks in ((0, 1, 2, 3), (0, 8, 16), (3, 1, 2), (5,), (0, 1, 4, 6, 8), tuple(range(10_000))):
        whole = plain([], {}, {WORLD: ranks})
        assert read_dump(json.dumps(reduced(whole)).encode(), 0).groups[WORLD].ranks == ranks


def test_the_default_group_of_gloo_is_known() -> None:
    """Gloo's recorder has no name for it in its table and another in its entries: it is one group."""
    groups = {"": [0, 1]}
    waits = read_dump(pickle.dumps(plain([entry(3, 4)], {0: (4, 3)}, groups)), 0)
    late = read_dump(pickle.dumps(plain([entry(2, 3, state="completed")], {0: (3, 3)}, groups)), 1)
    assert [(h.waiters, h.absent) for h in align([waits, late]).holds] == [((0,), (1,))]
