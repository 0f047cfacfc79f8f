"""GPUs are named by their device files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodewatch.gpu_numbers import GpuNumbers, driver_numbers
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.verdicts import Verdicts

MISSING = {"name": "gpu_count", "status": "fail", "reason": "gpu_missing", "sentence": "2 of 3 GPUs are there"}
ROWS = {"name": "gpu_rows", "status": "warn", "reason": "remap_pending", "sentence": "a remap is pending"}
WELL = {"name": "gpu_rows", "status": "pass", "reason": "", "sentence": "no row is remapped"}
MOMENT = Moment(1000.0, 100.0, 100.0)


def node(root: Path, **minors: int) -> GpuNumbers:
    """GPUs at these buses, with these device files."""
    for bus, minor in minors.items():
        folder = root / "proc/driver/nvidia/gpus" / f"0000:{bus[1:]}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")
    gpus = GpuNumbers(root)
    numbers, guessed = driver_numbers(root)
    gpus.learn(numbers, guessed=guessed)
    return gpus


def verdicts(gpus: GpuNumbers, *, first: bool = False) -> Verdicts:
    """What these two checks said, at the first look or later."""
    settings = {name: {**registry.get(name).settings({}), "strikes": 1} for name in ("gpu_count", "gpu_rows")}
    return Verdicts("b", settings, gpus, {}, first=first)


def test_a_gpu_has_the_number_of_its_device_file(tmp_path: Path) -> None:
    """Which need not be its place on the bus; NVML's word is the same number."""
    gpus = node(tmp_path, b1b=2, b9b=0, bcc=1)
    assert gpus.of(["0000:9B:00"]) == (0,)
    assert gpus.of(["0000:cc:00", "0000:1b:00.0"]) == (1, 2)
    gpus.learn({"00000000:DD:00.0": 3})
    assert gpus.of(["0000:dd:00"]) == (3,)
    again = GpuNumbers(tmp_path, {**gpus.kept, "0000:ee:00": "4"})
    assert again.of(["0000:dd:00", "0000:9b:00"]) == (0, 3)
    assert again.of(["0000:ee:00"]) == ()


def test_a_driver_that_names_no_numbers_is_taken_to_count_by_the_bus(tmp_path: Path) -> None:
    """Unless a GPU is missing that was known: the others keep theirs."""
    gpus = node(tmp_path, b1b=0, b9b=0, bcc=0)
    for path in (tmp_path / "proc/driver/nvidia/gpus").glob("*/information"):
        path.write_text("Model: H100\n")
    fresh = GpuNumbers(tmp_path)
    numbers, guessed = driver_numbers(tmp_path)
    assert guessed
    fresh.learn(numbers, guessed=True)
    assert fresh.of(["0000:1b:00", "0000:9b:00", "0000:cc:00"]) == (0, 1, 2)
    fresh.learn({"0000:9b:00.0": 0, "0000:cc:00.0": 1}, guessed=True)
    assert fresh.of(["0000:cc:00"]) == (2,)
    assert gpus.of(["0000:1b:00"]) == (0,)


def test_the_service_itself_reads_no_file_that_may_hang(tmp_path: Path) -> None:
    """A pipe stands for the file of a lost GPU: who is missing is known by names alone, and a child gives up."""
    gpus = node(tmp_path, b1b=1, b9b=0)
    folder = tmp_path / "proc/driver/nvidia/gpus"
    (folder / "0000:1b:00.0/information").unlink()
    (folder / "0000:1b:00.0").rmdir()
    (folder / "0000:9b:00.0/information").unlink()
    os.mkfifo(folder / "0000:9b:00.0/information")
    assert gpus.missing() == {"0000:1b:00"}
    assert gpus.of(["0000:9b:00", "0000:1b:00"]) == (0, 1)
    assert gpus.of(["0000:dd:00"]) == ()
    assert driver_numbers(tmp_path, 0.05) == ({}, False)
    (folder / "0000:9b:00.0/information").open("w").close()  # the thread that waits there ends


def test_the_gpu_that_is_missing_is_named(tmp_path: Path) -> None:
    """Where it was seen before; else it may be any of the node's."""
    gpus = node(tmp_path, b1b=1, b9b=0)
    (found,) = verdicts(gpus).changes("poll", [MISSING], MOMENT)
    assert found.finding.gpus == ()
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0"
    (folder / "information").unlink()
    folder.rmdir()
    (found,) = verdicts(gpus).changes("poll", [MISSING], MOMENT)
    assert (found.finding.gpus, found.finding.urgency) == ((1,), "now")
    assert found.finding.about_gpus


def test_what_the_first_look_finds_is_older_than_the_jobs(tmp_path: Path) -> None:
    """A note, unless it is urgent; the same later, or after a restart of the service, is news."""
    at_first = verdicts(node(tmp_path), first=True)
    found = at_first.changes("nvml", [ROWS, MISSING], MOMENT)
    assert [seen.finding.urgency for seen in found] == ["note", "now"]
    at_first.changes("nvml", [WELL], MOMENT)
    (again,) = at_first.changes("nvml", [ROWS], MOMENT)
    assert again.finding.urgency == "at_next_checkpoint"
    (found_later,) = verdicts(node(tmp_path)).changes("nvml", [ROWS], MOMENT)
    assert found_later.finding.urgency == "at_next_checkpoint"


def rows(*buses: str, status: str = "warn") -> dict[str, object]:
    """A row remap is pending on these GPUs."""
    where = ", ".join(buses)
    evidence = {"gpus": [{"bus": f"00000000:{bus}:00.0"} for bus in buses]}
    return {**ROWS, "status": status, "sentence": f"a remap is pending on {where}", "evidence": evidence}


def test_a_fault_that_comes_to_another_gpu_is_told_of_that_one(tmp_path: Path) -> None:
    """Also once the first is well; nothing is told twice, neither after a restart of the service."""
    gpus = node(tmp_path, b1b=1, b9b=0, bcc=2)
    said = verdicts(gpus)

    def told(*buses: str) -> list[tuple[int, ...]]:
        return [seen.finding.gpus for seen in said.changes("nvml", [rows(*buses)], MOMENT)]

    assert told("9B") == [(0,)]
    assert told("9B") == []
    (second,) = said.changes("nvml", [rows("9B", "1B")], MOMENT)
    assert (second.finding.gpus, second.finding.urgency) == ((1,), "at_next_checkpoint")
    assert second.finding.text == "a remap is pending on 9B, 1B (new on 0000:1b:00)"
    assert told("1B") == []
    said = Verdicts("b", {"gpu_rows": {"strikes": 1}}, gpus, json.loads(json.dumps(said.kept)))
    assert told("1B") == []
    assert told("1B", "9B", "CC") == [(0, 2)]
    (well,) = said.changes("nvml", [WELL], MOMENT)
    assert (well.finding.gpus, well.well) == ((), True)
    assert told("CC") == [(2,)]


def test_another_gpu_fails_as_often_in_a_row_as_the_first(tmp_path: Path) -> None:
    """A second one that is missing is told of, too: by its own look."""
    gpus = node(tmp_path, b1b=1, b9b=0)
    said = Verdicts("b", {"gpu_rows": {"strikes": 2, "window_s": 60.0}}, gpus, {})
    looks = [("9b",), ("9b",), ("9b", "1b"), ("9b",), ("9b", "1b"), ("9b", "1b"), ("9b", "1b")]
    found = [said.changes("nvml", [rows(*hit, status="fail")], MOMENT) for hit in looks]
    assert [[seen.finding.gpus for seen in seens] for seens in found] == [[], [(0,)], [], [], [], [(1,)], []]


def test_a_second_gpu_that_goes_missing_is_told(tmp_path: Path) -> None:
    """By the driver's names."""
    gpus = node(tmp_path, b1b=1, b9b=0, bcc=2)
    said, found = verdicts(gpus), []
    for bus in ("1b", "cc"):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:{bus}:00.0"
        (folder / "information").unlink()
        folder.rmdir()
        found += said.changes("poll", [MISSING], MOMENT)
    assert [(seen.finding.gpus, seen.finding.urgency, seen.unfit) for seen in found] == [
        ((1,), "now", True),
        ((2,), "now", True),
    ]


def test_damaged_memory_of_what_was_said_counts_as_none(tmp_path: Path) -> None:
    """An older version's is believed: it named no GPUs, so those that it told of are not known."""
    gpus = node(tmp_path, b9b=0)
    for kept in (["warn"], ["warn", 3, []], ["warn", "remap_pending", [3]], "warn", None):
        said = Verdicts("b", {}, gpus, {"gpu_rows": kept})
        assert len(said.changes("nvml", [rows("9b")], MOMENT)) == 1
    old = Verdicts("b", {}, gpus, {"gpu_rows": ["warn", "remap_pending"]})
    assert old.changes("nvml", [rows("9b")], MOMENT) == []
