import contextlib
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from localize_scenes import ALL_REDUCE, FEEDER, LOADER_WAIT, WORKER_LOCK, process, rank

from slurm_robust.localize.evidence import Progress
from slurm_robust.localize.evidence_folder import read_folder
from slurm_robust.localize.stacks import archive
from slurm_robust.localize.stacks.archive import ArchiveError, NodeArchive, captures, decode, encode
from slurm_robust.supervise.agent import capture as agent_capture
from slurm_robust.supervise.agent.ranks import Rank, StepProcess

SAMPLE = NodeArchive(
    "n1",
    1000.5,
    2,
    (
        rank(0, process(ALL_REDUCE, side=[FEEDER]), node="n1"),
        rank(
            1,
            process(LOADER_WAIT),
            process(WORKER_LOCK, 7, state="D", wchan="nfs"),
            process(None, 8),
            node="n1",
            step=None,
        ),
    ),
)


def raw() -> dict[str, Any]:
    """The sample as the agent's JSON."""
    body: dict[str, Any] = json.loads(gzip.decompress(encode(SAMPLE)))
    return body


def test_written_and_read() -> None:
    """What is written is read back the same; the same evidence gives the same bytes."""
    assert decode(encode(SAMPLE)) == SAMPLE
    assert encode(SAMPLE) == encode(SAMPLE)


def test_what_the_agent_writes(tmp_path: Path) -> None:
    """The node agent's own capture of a real process is read, state, counters, stack and all."""
    script = tmp_path / "victim.py"
    script.write_text(
        "import threading\nlock = threading.Lock()\nlock.acquire()\nprint('up', flush=True)\nlock.acquire()\n"
    )
    victim = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert victim.stdout is not None
        victim.stdout.readline()
        stat = Path(f"/proc/{victim.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", 10, "the wait for the lock")
        member = StepProcess(victim.pid, 1, 0, "python", 0, 3, "0", 4, 1, "")
        spy = str(Path(sys.executable).with_name("py-spy"))
        written = agent_capture.capture(
            [Rank(3, "0", 4, member, ())],
            {3: {"step": 7, "phase": "train", "age_s": 0.5}},
            agent_capture.CaptureOptions("n1", 2, spy, 10.0),
        )
    finally:
        victim.kill()
        victim.communicate()
    found = decode(json.dumps(written).encode())
    assert (found.node, found.round, found.ranks[0].rank, found.ranks[0].node) == ("n1", 2, 3, "n1")
    assert found.ranks[0].progress == Progress(7, "train", 0.5)
    process = found.ranks[0].processes[0]
    assert (process.pid, process.state, process.os_threads, process.error) == (victim.pid, "S", 1, "")
    assert process.net_bytes == 0, "it has no connection"
    assert process.cpu_s >= 0
    assert process.io_bytes > 0
    assert process.threads[0].main
    assert process.threads[0].frames[-1].file == str(script)


def test_equal_stacks_are_stored_once() -> None:
    """A hundred loaders that wait alike cost one stack."""
    many = NodeArchive("n1", 0.0, 1, tuple(rank(n, process(ALL_REDUCE), node="n1") for n in range(100)))
    assert len(json.loads(gzip.decompress(encode(many)))["stacks"]) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 99}, "version 99"),
        ({"node": "../../etc"}, "not a node name"),
        ({"node": None}, "node"),
        ({"at_s": "soon"}, "at_s"),
        ({"ranks": {}}, "ranks"),
        ({"ranks": [{"rank": -1}]}, "rank"),
        ({"ranks": [{"rank": 1, "processes": [{"pid": "x"}]}]}, "pid"),
        ({"stacks": {"h": [{"frames": [["f", 3, 1]]}]}}, "frames"),
    ],
)
def test_malformed(change: dict[str, Any], says: str) -> None:
    """Each wrong field is a sentence that names it."""
    with pytest.raises(ArchiveError, match=says):
        decode(json.dumps({**raw(), **change}).encode())


def test_unknown_keys_are_passed_over() -> None:
    """A newer agent may say more."""
    assert decode(json.dumps({**raw(), "new": 1}).encode()) == SAMPLE


def test_missing_stack_is_an_error_of_that_process_only() -> None:
    """A hash without its stack leaves a process without threads, and says so."""
    found = decode(json.dumps({**raw(), "stacks": {}}).encode())
    assert "missing from the archive" in found.ranks[0].processes[0].error


def test_cut_off_and_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a file, and one that unpacks to too much, are refused."""
    with pytest.raises(ArchiveError, match="half written"):
        decode(encode(SAMPLE)[:-20])
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(ArchiveError, match="unpacks to more"):
        decode(gzip.compress(b" " * 100_000))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """Whatever comes, it is an `ArchiveError` or an archive."""
    with contextlib.suppress(ArchiveError):
        assert decode(data).node


@settings(max_examples=200)
@given(st.data())
def test_garbled_fields(data: st.DataObject) -> None:
    """One value replaced by another type anywhere: an archive or an `ArchiveError`, never anything else."""
    body = raw()
    target: Any = body
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(target[key], (dict, list)) and target[key] and data.draw(st.booleans()):
            target = target[key]
            continue
        target[key] = data.draw(st.sampled_from([None, -1, 2**70, 1e400, "x" * 600, [], {}, True]))
        break
    with contextlib.suppress(ArchiveError):
        assert decode(json.dumps(body).encode()).node == "n1"


def test_rounds_are_put_together() -> None:
    """Nodes of one round make a capture; a node that lacks in a round is missing there."""
    archives = [
        NodeArchive(node, at_s, number, (rank(n, node=node),))
        for number, at_s in ((1, 10.0), (2, 20.0))
        for n, node in enumerate(("a", "b"))
        if (number, node) != (2, "b")
    ]
    (first, second), problems = captures(archives)
    assert [r.rank for r in first.ranks] == [0, 1]
    assert (second.at_s, second.missing_nodes) == (20.0, ("b",))
    assert problems == ()


def test_rank_twice() -> None:
    """Two nodes that both claim a rank are told."""
    _, problems = captures([NodeArchive(node, 1.0, 1, (rank(0, node=node),)) for node in ("a", "b")])
    assert "rank 0 is twice" in problems[0]


def test_folder_goes_on_with_what_is_usable(tmp_path: Path) -> None:
    """Bad files become sentences that name them; the good ones are used."""
    (tmp_path / "n1.json.gz").write_bytes(encode(SAMPLE))
    (tmp_path / "n2.json.gz").write_bytes(b"\x1f\x8bgarbage")
    (tmp_path / "n3.json.gz").write_bytes(b"")
    (tmp_path / "rank-9.json").write_text("[{")
    (tmp_path / "notes.md").write_text("not ours")
    saved = read_folder(tmp_path)
    assert len(saved.problems) == 3
    assert all(str(tmp_path) in problem for problem in saved.problems)
    assert saved.evidence.rank_nodes == {0: "n1", 1: "n1"}


def test_folder_of_a_job(tmp_path: Path) -> None:
    """Where a job's folder holds several incidents, the last is looked at, and that is said."""
    for incident, at_s in (("i1", 100.0), ("i2", 200.0)):
        for number in (1, 2):
            place = tmp_path / incident / f"stacks-{number}"
            place.mkdir(parents=True)
            packed = encode(replace(SAMPLE, at_s=at_s + number, round=number))
            (place / "n1.json.gz").write_bytes(packed)
    saved = read_folder(tmp_path)
    assert [c.at_s for c in saved.evidence.captures] == [201.0, 202.0]
    assert "2 incidents" in saved.problems[0]
    assert read_folder(tmp_path / "i1").problems == ()
    assert len(read_folder(tmp_path / "i1").evidence.captures) == 2


def test_folder_of_text_dumps(tmp_path: Path) -> None:
    """What people paste into tickets, one file a rank, with a header for node and state."""
    dump = 'Process 5: python train.py\nPython v3.11.7\n\nThread 5 (idle): "MainThread"\n    f (train.py:3)\n'
    (tmp_path / "rank-0.txt").write_text("# node: alpha\n# state: T\n" + dump)
    (tmp_path / "beta").mkdir()
    (tmp_path / "beta" / "rank-1.txt").write_text(dump)
    evidence = read_folder(tmp_path).evidence
    assert evidence.rank_nodes == {0: "alpha", 1: "beta"}
    assert evidence.captures[0].ranks[0].processes[0].state == "T"


@pytest.mark.parametrize("make", [False, True])
def test_folder_with_nothing(tmp_path: Path, make: bool) -> None:
    """No folder, or an empty one: an error that says what was looked for."""
    folder = tmp_path / "x"
    if make:
        folder.mkdir()
    with pytest.raises(ArchiveError, match=r"no such folder|no \*\.json\.gz"):
        read_folder(folder)
