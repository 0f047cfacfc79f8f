"""The ring: bounds, counts, numbers that go on, and whatever may stand in the way of a write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from watch_helpers import OWNERS

from slurm_robust.marks import node_findings
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodewatch.ring import WRITE_S, FindingRing, Seen

BOOT = "b"


def seen(kind: str = "xid", at_s: float = 1000.0, urgency: str = "now", text: str = "x", times: int = 1) -> Seen:
    """Something to keep."""
    return Seen(NodeFinding(0, at_s, "kmsg", kind, urgency, text, (), "", 79), times)


def made(folder: Path, said: list[str] | None = None) -> FindingRing:
    """A ring that has loaded what is there."""
    ring = FindingRing(folder, BOOT, [].append if said is None else said.append)
    ring.load()
    return ring


def read(folder: Path) -> list[NodeFinding]:
    """As agents read it."""
    return node_findings.read(str(folder), BOOT, OWNERS)


def test_an_empty_ring_is_written_and_readable_by_all(tmp_path: Path) -> None:
    """So that agents know that somebody watches; whatever the umask is."""
    old = os.umask(0o077)
    try:
        ring = made(tmp_path / "run")
        assert ring.flush(0.0)
    finally:
        os.umask(old)
    assert (tmp_path / "run" / node_findings.FILE_NAME).stat().st_mode & 0o777 == 0o644
    assert read(tmp_path / "run") == []


def test_equal_findings_are_counted(tmp_path: Path) -> None:
    """A storm of one kind is one finding that says how often; ten minutes later it is told again."""
    ring = made(tmp_path)
    for number in range(1000):
        ring.add(seen(at_s=1000 + number / 100, times=2))
    ring.flush(0.0)
    assert [(f.seq, f.text) for f in read(tmp_path)] == [(1, "x (seen 2000 times)")]
    assert ring.add(seen(at_s=1700)) is not None


def test_a_fault_that_comes_back_after_its_end_is_told_again(tmp_path: Path) -> None:
    """Lost, well again, and lost for the second time, all within ten minutes."""
    ring = made(tmp_path)

    def check(at_s: float, urgency: str, text: str, about: str) -> NodeFinding | None:
        finding = NodeFinding(0, at_s, "nvml", "gpu_driver", urgency, text, (3,) if urgency == "now" else ())
        return ring.add(Seen(finding, about=about))

    for minute in range(3):
        assert check(1000 + 60 * minute, "now", "GPU 3 is lost", "fail lost") is not None
        assert check(1001 + 60 * minute, "now", "GPU 3 is lost", "fail lost") is None
        assert check(1020 + 60 * minute, "note", "gpu_driver is well again", "pass ok") is not None


def test_two_flaps_are_two_findings(tmp_path: Path) -> None:
    """A link that bounces while it trains is one loss; a minute later it is another."""
    ring = made(tmp_path)
    flaps = [ring.add(seen("link", at_s, "if_repeated")) for at_s in (1000, 1001, 1004, 1060)]
    assert [flap is not None for flap in flaps] == [True, False, False, True]


def test_a_clock_that_jumps_back_hides_nothing(tmp_path: Path) -> None:
    """A fault after the jump is new, though its time is before that of the last one."""
    ring = made(tmp_path)
    assert ring.add(seen(at_s=1_000_000))
    assert ring.add(seen(at_s=1000))


def test_a_flood_of_notes_leaves_the_fatal_one(tmp_path: Path) -> None:
    """Notes go first; of one kind the last 16 stay."""
    ring = made(tmp_path)
    ring.add(seen())
    for number in range(5000):
        ring.add(seen(f"k{number}", urgency="note", text="é" * 400))
    for number in range(100):
        ring.add(seen("link", 1000 + 100 * number, "if_repeated"))
    ring.flush(0.0)
    kept = read(tmp_path)
    assert [f.kind for f in kept].count("xid") == 1
    assert [f.kind for f in kept].count("link") == 16
    assert (tmp_path / node_findings.FILE_NAME).stat().st_size < node_findings.MAX_BYTES
    assert kept == ring.findings


def test_at_most_five_writes_a_second(tmp_path: Path) -> None:
    """However often something is added."""
    ring = made(tmp_path)
    writes = 0
    for step in range(1000):  # a second
        ring.add(seen(f"k{step}"))
        before = ring.dirty
        writes += before and ring.flush(step / 1000)
    assert writes <= 1 + 1 / WRITE_S


def test_numbers_go_on_and_nothing_is_told_twice(tmp_path: Path) -> None:
    """A service that was killed reads some records again: the ring knows them."""
    ring = made(tmp_path)
    ring.add(seen(at_s=1000))
    ring.flush(0.0)
    again = made(tmp_path)
    assert again.add(seen(at_s=1000.2)) is None
    numbered = again.add(seen("other", at_s=1000))
    assert numbered is not None
    assert numbered.seq == 2


def test_numbers_go_on_where_the_file_is_gone(tmp_path: Path) -> None:
    """By what the service keeps beside it."""
    ring = FindingRing(tmp_path, BOOT, [].append)
    ring.load(least_seq=41)
    numbered = ring.add(seen())
    assert numbered is not None
    assert numbered.seq == 42


def test_a_folder_that_others_may_write_is_refused_and_said_once(tmp_path: Path) -> None:
    """Agents would not believe it; mended, the findings are there."""
    said: list[str] = []
    tmp_path.chmod(0o777)
    ring = made(tmp_path, said)
    said.clear()
    ring.add(seen())
    for number in range(5):
        assert not ring.flush(number * 10.0)
    assert len(said) == 1
    assert "chmod go-w" in said[0]
    tmp_path.chmod(0o755)
    assert ring.flush(100.0)
    assert len(read(tmp_path)) == 1


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Nor one in the place of the file that is renamed."""
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / node_findings.FILE_NAME).symlink_to(target)
    (folder / f".{node_findings.FILE_NAME}.new").symlink_to(target)
    said: list[str] = []
    ring = made(folder, said)
    assert said, "an earlier file that cannot be believed is said"
    assert ring.flush(0.0)
    assert target.read_text() == "precious"
    assert read(folder) == []


def test_a_file_that_is_swapped_or_removed_is_written_again(tmp_path: Path) -> None:
    """And that is said."""
    said: list[str] = []
    ring = made(tmp_path, said)
    ring.add(seen())
    ring.flush(0.0)
    ring.inspect()
    assert not ring.dirty
    assert not said
    for number, swap in enumerate((lambda path: path.unlink(), lambda path: path.rename(tmp_path / "elsewhere")), 1):
        swap(tmp_path / node_findings.FILE_NAME)
        if number == 2:
            (tmp_path / node_findings.FILE_NAME).write_text("{}")
        ring.inspect()
        assert len(said) == number
        assert ring.flush(number * 10.0)
        assert len(read(tmp_path)) == 1


def test_a_directory_in_its_place_is_said_and_no_crash(tmp_path: Path) -> None:
    """Somebody's mistake; tried again."""
    said: list[str] = []
    ring = made(tmp_path, said)
    said.clear()
    (tmp_path / node_findings.FILE_NAME).mkdir()
    assert not ring.flush(0.0)
    (tmp_path / node_findings.FILE_NAME).rmdir()
    assert ring.flush(10.0)
    assert len(said) == 2


def test_a_full_file_system(tmp_path: Path) -> None:
    """The last whole file stays, it is said once, and the findings come when there is room."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    try:
        said: list[str] = []
        ring = made(tmp_path, said)
        ring.flush(0.0)
        blocks = tmp_path / "filler"
        with blocks.open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 4096)
            except OSError:
                pass
        for number in range(64):
            ring.add(seen(f"k{number}", text="y" * 200))
        assert not ring.flush(10.0)
        assert not ring.flush(20.0)
        assert len(said) == 1
        assert "No space left" in said[0]
        assert read(tmp_path) == []
        blocks.unlink()
        assert ring.flush(30.0)
        assert len(read(tmp_path)) == 64
    finally:
        subprocess.run(["umount", tmp_path], check=True)
