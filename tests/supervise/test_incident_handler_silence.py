"""What is done about silence, without a cluster."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from slurm_robust.config import Config, SuperviseConfig
from slurm_robust.model import Conclusion, Plan, Road, Verdict
from slurm_robust.supervise.incident.incident_folder import Folder
from slurm_robust.supervise.incident.incident_handler import Handling
from slurm_robust.supervise.watch.attempt_state import Present

LIMIT_S = 600.0


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now_s)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr("slurm_robust.supervise.incident.incident_handler.asyncio.sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        """It takes no time."""
        self.now_s += seconds


def test_the_action_limit_is_checked_when_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the next capture, which may be `recapture_s` (here ten minutes) away."""
    clock = Clock(monkeypatch)
    present = Present("5.0.1.1", ("n1",), job_id=5, layout={}, paths=(), log_pattern="")
    present.fleet.feed({"t": "rank", "n": "n1", "rank": 0, "pid": 100, "step_id": "0", "world": 1, "at": 0.0}, 1000.0)
    for step in range(10):
        entry = [0, step, "train", 990.0 + step, 1, None, None, None]
        present.fleet.feed({"t": "p", "n": "n1", "r": [entry]}, 1000.0)
    limits = SuperviseConfig(action_limit_s=LIMIT_S, recapture_s=LIMIT_S)
    record = SimpleNamespace(id="i", signals=[], plan=None)
    decided: list[tuple[float, bool]] = []

    class Inquiry:
        rounds = 0

        async def capture(self) -> None:
            self.rounds += 1

        def judge(self) -> Verdict:
            return Verdict(Conclusion.UNDETERMINED, "nothing explains it")

    async def nothing(*_: Any) -> None:
        return None

    supervisor: Any = SimpleNamespace(
        present=present,
        config=msgspec.structs.replace(Config(), supervise=limits),
        folder=Folder(tmp_path, quiet=True),
        book=SimpleNamespace(open=lambda _: record, save=lambda _: None),
        glance=nothing,
        channel=None,
        attached=None,
        ended=None,
    )
    handling = Handling(supervisor)

    async def decide(*_: Any, overdue: bool, **__: Any) -> Plan:
        decided.append((clock.now_s, overdue))
        return Plan(Road.STOP if overdue else Road.ALERT_ONLY, "nothing explains it")

    async def carry_out(*_: Any) -> int:
        return 93

    monkeypatch.setattr(handling, "investigator", lambda _: Inquiry())
    monkeypatch.setattr(handling, "_look_for_dead_nodes", nothing)
    monkeypatch.setattr(handling, "_decide", decide)
    monkeypatch.setattr(handling, "_carry_out", carry_out)
    clock.now_s = 1010.0
    assert asyncio.run(handling.silent(present.assess(limits))) == 93
    at_s, overdue = decided[-1]
    assert overdue
    assert at_s - 999.0 == pytest.approx(LIMIT_S, abs=1.0)
