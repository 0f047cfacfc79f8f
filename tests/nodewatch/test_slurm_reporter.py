"""What waits to be told to Slurm: once, in a child, again while Slurm is away, and not any more when it is over."""

from __future__ import annotations

import contextlib
import json
import math
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers import wait_until

from slurm_robust.config.site import Config, parse
from slurm_robust.marks.fault_marker import FaultMarker
from slurm_robust.marks.node_findings import NodeFinding
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Say, Seen
from slurm_robust.nodewatch.slurm_reporter import GAP_S, SlurmReporter, UnfitNode, lacking, marker_of
from slurm_robust.nodewatch.source import SourceBrokenError


def seen(kind: str = "xid", *, unfit: bool = True, gpus: tuple[int, ...] = (), age_s: float = 0.0) -> Seen:
    """A finding."""
    made = NodeFinding(0, Moment.now().wall_s - age_s, "kmsg", kind, "now", f"{kind} is broken", gpus)
    return Seen(made, unfit=unfit)


class Told:
    """A reporter, with what its children have told."""

    def __init__(
        self, folder: Path, tell: Callable[[Sequence[UnfitNode], Say], None] | None = None, **more: object
    ) -> None:
        self.path, self.said = folder / "told", list[str]()
        self.reporter = SlurmReporter(tell or self._tell, self.said.append, silent_s=0.5, **more)  # type: ignore[arg-type]
        self.reporter.open(Moment.now())

    def _tell(self, faults: Sequence[UnfitNode], say: Say) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([fault.kind for fault in faults]) + "\n")
        say("told")

    def told(self) -> list[list[str]]:
        """The kinds of each child."""
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def offer(self, *found: Seen, later_s: float = 0.0) -> None:
        """As the service does it with all that it finds."""
        for one in found:
            self.reporter.offer(one, after(later_s))

    def turn(self, later_s: float = 0.0) -> None:
        """Let it do what is due at a later time: start its child, and hear it to its end."""
        moment = after(later_s)
        if moment.monotonic_s < self.reporter.due_s:
            return
        self.reporter.tick(moment)
        while self.reporter.fd >= 0:
            select.select([self.reporter.fd], [], [], 10)
            self.reporter.read(moment)


def after(seconds: float) -> Moment:
    """A moment so long from now."""
    now = Moment.now()
    return now._replace(monotonic_s=now.monotonic_s + seconds)


def test_nothing_is_started_where_nothing_is_to_be_told(tmp_path: Path) -> None:
    """Warnings, notes, and what is older than the service is worth."""
    told = Told(tmp_path)
    told.offer(seen(unfit=False), seen("old", age_s=3000))
    assert told.reporter.due_s == math.inf
    assert told.reporter.kept == {"waiting": []}


def test_a_fault_is_told_once_and_what_comes_meanwhile_goes_together(tmp_path: Path) -> None:
    """One child at a time, and no two within two seconds."""
    told = Told(tmp_path)
    told.offer(seen(), seen())
    told.turn()
    assert told.told() == [["xid"]]
    assert told.said == ["told"]
    told.offer(seen(), seen("disk_lost"), seen("gpu_ecc", gpus=(3,)))
    told.turn()
    assert told.told() == [["xid"]], "not yet"
    told.turn(later_s=GAP_S + 0.1)
    assert told.told() == [["xid"], ["disk_lost", "gpu_ecc"]]
    assert told.reporter.due_s == math.inf
    for number in range(8):
        told.offer(seen(f"kind{number}"), later_s=20 + number)
        told.turn(later_s=20 + number)
    assert len(told.told()) == 3, "ever more seldom while there is always something new"
    told.turn(later_s=100)
    told.offer(seen(), later_s=700)
    told.turn(later_s=700)
    assert told.told()[-1] == ["xid"], "again after ten minutes"


def test_slurm_that_is_away_is_told_later(tmp_path: Path) -> None:
    """The child's error breaks the source, which the service starts again after a pause; nothing is forgotten."""

    def away(faults: Sequence[UnfitNode], say: Say) -> None:
        raise OSError("Unable to contact slurm controller")

    broken = Told(tmp_path, away)
    broken.offer(seen())
    with pytest.raises(SourceBrokenError, match="Unable to contact"):
        broken.turn()
    broken.reporter.close()

    def opened() -> bool:
        with contextlib.suppress(SourceBrokenError):  # its child has not quite ended
            broken.reporter.open(after(GAP_S))
            return True
        return False

    wait_until(opened, 10, "the next one")
    assert broken.reporter.due_s < math.inf
    # The service is killed meanwhile: the next one goes on with what it kept.
    kept = json.loads(json.dumps(broken.reporter.kept))
    told = Told(tmp_path, kept=kept)
    told.turn()
    assert told.told() == [["xid"]]


def test_a_child_that_hangs_is_abandoned(tmp_path: Path) -> None:
    """The service's loop never waits for it."""
    told = Told(tmp_path, lambda faults, say: time.sleep(60))
    told.offer(seen())
    told.reporter.tick(Moment.now())
    began_s = time.monotonic()
    with pytest.raises(SourceBrokenError, match="said nothing"):
        told.reporter.tick(after(1))
    assert time.monotonic() - began_s < 1
    told.reporter.close()
    assert told.reporter.kept["waiting"], "told later"


def test_what_is_over_is_not_told(tmp_path: Path) -> None:
    """It was well again before Slurm could be asked; when it comes again, it is told again."""
    told = Told(tmp_path)
    well = Seen(NodeFinding(0, Moment.now().wall_s, "nvml", "gpu_ecc", "note", "gpu_ecc is well again"), well=True)
    told.offer(seen("gpu_ecc"), well)
    told.turn()
    assert told.told() == []
    told.offer(seen("gpu_ecc"))
    told.turn()
    told.offer(well, seen("gpu_ecc"), later_s=3)
    told.turn(later_s=3)
    assert told.told() == [["gpu_ecc"], ["gpu_ecc"]]


@pytest.mark.parametrize(
    "kept", [None, {}, {"waiting": 7}, {"waiting": [1, ["x"], [None] * 6, ["a", "b", 1, 1, 1, 1]]}]
)
def test_a_state_that_makes_no_sense_counts_as_none(tmp_path: Path, kept: object) -> None:
    """Files get damaged."""
    assert Told(tmp_path, kept=kept).reporter.kept == {"waiting": []}


def test_the_marker_has_the_urgent_faults_and_all_of_their_gpus() -> None:
    """Where one of them is about the whole node, so is the marker; without an urgent one it spares the jobs."""
    mild = UnfitNode("gpu_rows", 50.0, "a row remap is pending", False, (2,))
    first, second = UnfitNode("xid", 9.5, "XID 79", True, (1,)), UnfitNode("xid", 8.0, "XID 48", True, (0,))
    assert marker_of([mild]) == FaultMarker(50, "gpu_rows", (2,), "a row remap is pending", "", True)
    assert marker_of([mild, first, second]) == FaultMarker(9, "xid", (0, 1), "XID 79; XID 48")
    whole = marker_of([first, second._replace(gpus=())])
    assert whole.gpus == ()
    disk = UnfitNode("disk_lost", 9.0, "sda is gone", True)
    assert marker_of([second, disk]) == FaultMarker(9, "disk_lost", (), "XID 48; sda is gone"), "it concerns all jobs"


def test_where_slurms_commands_are_missing_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the service's PATH, or in the folder that the site named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "the service's PATH" in lacking(Config())
    chosen = parse(f"slurm: {{bin_dir: {tmp_path}}}")
    assert f"not in {tmp_path}" in lacking(chosen)
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert lacking(Config()) == lacking(chosen) == ""
