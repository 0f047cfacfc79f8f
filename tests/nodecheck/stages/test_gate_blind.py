"""A health check that cannot see the GPUs says so to the daemon, once in a while, and that it is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.config.site import Config, SlurmConfig
from slurm_robust.core.model import Mode
from slurm_robust.marks import blind_marker
from slurm_robust.nodecheck.engine.finding import Finding, NodeReport, Result, Status
from slurm_robust.nodecheck.stages import gate, stage_run
from slurm_robust.slurm.client import Node
from slurm_robust.slurm.errors import SlurmTimeoutError

WHY = "NVML cannot be used: the package nvidia-ml-py is not installed for /opt/slurm_robust/bin/python"
BLIND = Result("gpu_driver", Finding(Status.UNKNOWN, "nvml_no_binding", WHY))
LATE = Result("gpu_driver", Finding(Status.UNKNOWN, "deadline", "no answer within 5 s"))
WELL = Result("gpu_driver", Finding(Status.PASS, "answers", "8 GPUs answer"))


class Slurm:
    """One node, and what is written about it."""

    def __init__(self, extra: str = "rack 7") -> None:
        self.current: Node | None = Node("n1", "IDLE", extra=extra)
        self.calls: list[str] = []
        self.error: Exception | None = None

    def connect(self, config: SlurmConfig) -> Any:
        """Itself."""
        assert config.timeout_s <= 3.0
        return self

    def node(self, name: str) -> Node | None:
        """The node."""
        self.calls.append("node")
        if self.error:
            raise self.error
        return self.current

    def set_node_extra(self, nodes: str, extra: str) -> None:
        """Write it."""
        self.calls.append("extra")
        self.current = Node(nodes, "IDLE", extra=extra)

    @property
    def extra(self) -> str:
        """What stands there."""
        return self.current.extra if self.current else ""


@pytest.mark.parametrize("mode", list(Mode))
def test_it_is_marked_in_both_modes_and_cleared(mode: Mode) -> None:
    """The first days of a site are in observe mode: then it matters most that somebody reads it."""
    slurm = Slurm()
    assert gate.tell_blind("n1", WHY, Config(mode=mode), slurm.connect) == ""
    assert slurm.extra.startswith("rack 7 [[srobust-blind v=1 at=")
    marker = blind_marker.parse(slurm.extra)
    assert marker is not None
    assert marker.reason == WHY
    assert gate.tell_blind("n1", "", Config(mode=mode), slurm.connect) == ""
    assert slurm.extra == "rack 7"
    slurm.calls.clear()
    assert gate.tell_blind("n1", "", Config(mode=mode), slurm.connect) == ""
    assert slurm.calls == ["node"], "nothing is written where nothing changes"


@pytest.mark.parametrize(
    ("age_s", "reason", "writes"), [(100, WHY, False), (100, "other", True), (blind_marker.RENEWED_S + 9, WHY, True)]
)
def test_what_is_there_is_not_written_again(age_s: float, reason: str, writes: bool) -> None:
    """A node that cannot keep what it told would write at each health check."""
    marker = blind_marker.BlindMarker(int(time.time() - age_s), reason)
    slurm = Slurm(blind_marker.render(marker))
    assert gate.tell_blind("n1", WHY, Config(), slurm.connect) == ""
    assert slurm.calls == ["node", *["extra"] * writes]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    """A field with JSON, an unknown node, a Slurm that does not answer: said, and never an error."""
    assert "JSON" in gate.tell_blind("n1", WHY, Config(), Slurm('{"a": 1}').connect)
    slurm = Slurm()
    slurm.error = SlurmTimeoutError("scontrol did not answer")
    assert "did not answer" in gate.tell_blind("n1", WHY, Config(), slurm.connect)
    slurm.current, slurm.error = None, None
    assert "does not know" in gate.tell_blind("n1", WHY, Config(), slurm.connect)


def test_the_health_check_tells_what_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, again after six hours or a boot, and when it is over; a node that sees its GPUs makes no call at all."""
    told: list[str] = []
    problems = ["Slurm could not be reached"]
    clock = [1000.0]

    def tell(name: str, reason: str, config: Config, *, kind: str) -> str:
        assert kind == blind_marker.BLIND
        told.append(reason)
        return problems.pop() if problems else ""

    lines: list[str] = []
    monkeypatch.setattr(gate, "tell_blind", tell)
    monkeypatch.setattr(stage_run, "uptime_s", lambda: clock[0])
    (tmp_path / "robust.yaml").write_text("")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)

    def look(result: Result, uptime_s: float) -> list[str]:
        clock[0] = uptime_s
        told.clear()
        report = NodeReport("n1", "periodic", (result,))
        stage_run._tell_sight(report, cache, str(tmp_path / "robust.yaml"), lines.append)
        return list(told)

    assert look(WELL, 1000.0) == []
    assert look(BLIND, 1300.0) == [WHY]
    assert "could not be reached" in lines[-1]
    assert look(BLIND, 1600.0) == [WHY], "a try that failed is repeated"
    assert look(BLIND, 1900.0) == []
    assert look(BLIND, 1600.0 + blind_marker.RENEWED_S) == [WHY]
    assert look(BLIND, 30.0) == [WHY], "a new boot"
    assert look(LATE, 90.0) == [], "that a check had no time does not show that the GPUs are seen"
    assert look(WELL, 330.0) == [""]
    assert look(WELL, 630.0) == []
