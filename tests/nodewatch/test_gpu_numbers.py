"""GPUs are named by their device files."""

from __future__ import annotations

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
    assert gpus.missing() == (1,)
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
