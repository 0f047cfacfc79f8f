"""Infinity, integers of 400 digits, bytes that are no UTF-8, deep nesting, stray ranks: a sentence, never a crash."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from localize_scenes import MAIN, WORKER_LOCK, frames, in_loader, process, rank, two_rounds, waiting
from recorder_dumps import WORLD, entry, plain

from slurm_robust.cli.commands.localize import command
from slurm_robust.localize.evidence import Capture, StackFrame
from slurm_robust.localize.evidence_folder import read_folder
from slurm_robust.localize.ranks import strays
from slurm_robust.localize.ras import RasError, read
from slurm_robust.localize.recorder.dump import RecorderDumpError, read_dump, read_dumps
from slurm_robust.localize.slow.timings_file import read_timings
from slurm_robust.localize.stacks.archive import ArchiveError, NodeArchive, decode, encode
from slurm_robust.localize.stacks.merge import render_tree

HUGE = 10**400
RANKS = (waiting(0), waiting(1), in_loader(2, process(WORKER_LOCK)), waiting(3))
DUMP = 'Thread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:3252)\n'


def run(*options: str | Path) -> Result:
    """`srobust localize`, which must not raise."""
    done = CliRunner().invoke(command, [str(o) for o in options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    """Two rounds of four nodes; rank 2's loader hangs."""
    return two_rounds(tmp_path / "stacks", RANKS)


@pytest.mark.parametrize("key", ["record_id", "pg_id", "collective_seq_id", "time_created_ns"])
@pytest.mark.parametrize("number", [float("inf"), HUGE, 10**5000], ids=["inf", "400 digits", "5000 digits"])
def test_a_recorders_odd_numbers(key: str, number: Any) -> None:
    """A dump of such numbers is refused with a sentence, as JSON and as a pickle."""
    whole = plain([{**entry(9, 5), key: number}], {0: (5, 4)}, {WORLD: range(4)})
    with pytest.raises(RecorderDumpError):
        read_dump(pickle.dumps(whole), 0)
    if number != 10**5000:  # Python writes no such integer as text
        with pytest.raises(RecorderDumpError):
            read_dump(json.dumps(whole).encode(), 0)


def test_a_recorders_odd_counters_and_nesting() -> None:
    """Infinite counters, and sizes nested deeper than Python reads."""
    nested: list[Any] = []
    for _ in range(3000):
        nested = [nested]
    odd_counters = plain([entry(9, 5)], {}, {WORLD: range(4)})
    odd_counters["pg_status"] = {"0": {"last_enqueued_collective": float("inf"), "last_completed_collective": 4}}
    for whole in (odd_counters, plain([{**entry(9, 5), "input_sizes": 0}], {}, {WORLD: [0, HUGE]})):
        with pytest.raises(RecorderDumpError):
            read_dump(pickle.dumps(whole), 0)
    body = b'{"entries": [' + json.dumps(entry(9, 5)).encode().replace(b'"input_sizes": [[4]]', b'"input_sizes": '
                                                                       + b"[" * 900 + b"]" * 900) + b"]}"  # fmt: skip
    read_dump(body, 0)  # deep, and still readable


@pytest.mark.parametrize("value", ["Infinity", "1" + "0" * 400, "1e999", "-1", "NaN"])
def test_timings_of_no_duration(tmp_path: Path, value: str) -> None:
    """Such a line is left out, with its number; the others count."""
    good = [json.dumps({"rank": r, "step": s, "compute_s": 1.0}) for s in range(12) for r in range(4)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([*good, f'{{"rank": 0, "step": 99, "compute_s": {value}}}']) + "\n")
    found = read_timings(path)
    assert 99 not in found.timings.steps
    assert any("line 49" in problem for problem in found.problems)
    assert run("--timings", path).exit_code == 0


def test_timings_nested_too_deeply(tmp_path: Path) -> None:
    """One line of brackets is left out."""
    path = tmp_path / "t.jsonl"
    nested = "[" * 900 + "]" * 900
    path.write_text(f'{{"rank": 0, "step": 1, "compute_s": 1.0}}\n{{"rank": 1, "step": 1, "node": {nested}}}\n')
    assert read_timings(path).problems


def archive_of(text: str, **changed: Any) -> bytes:
    """A node's archive whose only frame has this file, as it was written; some fields of its process changed."""
    member = rank(5, process((StackFrame("f", "/home/u/FILE.py", 3),)), node="n9")
    raw = json.loads(gzip.decompress(encode(NodeArchive("n9", 1005.0, 2, (member,)))))
    raw["ranks"][0]["processes"][0].update(changed)
    return json.dumps(raw).encode().replace(b"FILE", text.encode("latin-1"))


def test_frames_that_are_no_utf8(stacks: Path) -> None:
    """The archive is left out with a sentence, and the others are judged."""
    with pytest.raises(ArchiveError, match="frames"):
        decode(archive_of("caf\xe9"))
    (stacks / "n9.r2.json.gz").write_bytes(archive_of("caf\xe9"))
    done = run("--stacks", stacks, "--json")
    told = json.loads(done.stdout)
    assert [s["node"] for s in told["suspects"]] == ["n2"]
    assert any("n9.r2.json.gz" in problem for problem in told["problems"])


@pytest.mark.parametrize("field", ["pid", "ppid", "io_bytes", "os_threads", "net_bytes"])
def test_an_archives_numbers_have_bounds(field: str) -> None:
    """A process id of 400 digits is none."""
    with pytest.raises(ArchiveError):
        decode(archive_of("train", **{field: HUGE}))


def test_an_answer_of_nccl_that_is_no_utf8() -> None:
    """Refused with a sentence; so are its numbers of 400 digits."""
    for body in (b'{"at_s": 1.0, "text": "\xff"}', b'{"at_s": 1.0, "json": {"communicators": [{"hash": "a", "size": 1'
                 + b"0" * 400 + b"}]}}"):  # fmt: skip
        with pytest.raises(RasError):
            read(body)


def test_deep_stacks_are_shown() -> None:
    """A thousand calls of one rank and another's side branch at every depth: the tree is written without recursion."""
    deep = frames(*MAIN) + tuple(StackFrame(f"call{n}", "/home/u/deep.py", n + 1) for n in range(1020))
    shallow = deep[:500]
    shown = render_tree(Capture(1.0, (rank(0, process(deep)), rank(1, process(shallow)))))
    assert "call1019" in shown


def test_a_json_dump_with_a_nested_header(tmp_path: Path) -> None:
    """Its node is no name: the file is left out, or read without it; the others are judged."""
    (tmp_path / "rank-0.txt").write_text(DUMP)
    (tmp_path / "rank-1.json").write_text('{"dump": [], "node": ' + "[" * 950 + "]" * 950 + "}")
    assert read_folder(tmp_path).evidence.world_size >= 1


def test_a_stray_rank_makes_no_world_of_millions(tmp_path: Path) -> None:
    """`rank-9999999.txt` beside four others: said, left out, and no list of ten million ranks is made."""
    for number in (0, 1, 2, 3, 9_999_999):
        (tmp_path / f"rank-{number}.txt").write_text(DUMP)
    tracemalloc.start()
    done = run("--stacks", tmp_path, "--json")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 96 << 20  # 64 MiB are the buffer of one file
    told = json.loads(done.stdout)
    assert any("rank 9999999" in problem for problem in told["problems"])
    assert not any("9999998" in what for what in told["missing"])
    assert read_folder(tmp_path).evidence.world_size == 4


def test_a_stray_dump_and_a_stray_timing(tmp_path: Path) -> None:
    """The same for the recorder's files and for step times."""
    for number in (0, 1, 9_999_999):
        whole = plain([entry(9, 5)], {0: (5, 4)}, {WORLD: range(2)})
        (tmp_path / f"dump_{number}").write_bytes(pickle.dumps(whole))
    found = read_dumps(tmp_path)
    assert sorted(found.dumps) == [0, 1]
    assert any("9999999" in problem for problem in found.problems)
    path = tmp_path / "t.jsonl"
    lines = [json.dumps({"rank": r, "step": s, "compute_s": 1.0}) for s in range(12) for r in (0, 1, 9_999_999)]
    path.write_text("\n".join(lines) + "\n")
    read_steps = read_timings(path)
    assert read_steps.timings.ranks == (0, 1)
    assert {len(row) for row in read_steps.timings.compute} == {2}


def test_which_ranks_are_strays() -> None:
    """Small numbers never; a lone one far above the others; what a person's world size holds is believed."""
    assert strays([0, 5000]) == ()
    assert strays([0, 1, 9_999_999]) == (9_999_999,)
    assert strays([0, 1, 9_999_998, 9_999_999], 10_000_000) == ()
    assert strays(range(0, 100_000, 2)) == ()
    assert strays([]) == ()
