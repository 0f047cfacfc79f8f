"""The incidents of one job, as its supervisor writes them down."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from slurm_robust.supervise.incident import incident_page

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor

_WINDOW_S = 3600.0


class Book:
    """Opens incidents, and writes their pages."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor
        self._idle_at_s: deque[float] = deque(maxlen=supervisor.config.supervise.suspicions_per_hour)
        self._full = False

    def open(self, fault_at_s: float) -> incident_page.Record:
        """A new incident; one that is still open failed before its first new step."""
        s = self._s
        if s.record is not None:
            s.record.notes.append("The attempt that followed failed before its first new step.")
            self.save(s.record)
        now = time.time()
        name = f"{s.context.name.replace('+', '_')}-r{s.context.job.restart_count}-{int(now)}"
        s.record = incident_page.Record(name, s.context.name, s.present.fleet.attempt or s.context.attempt_id.key, now)
        s.record.stamp("fault", fault_at_s)
        s.record.stamp("suspected", now)
        s.context.suspect()
        return s.record

    def came_to_nothing(self) -> None:
        """Count a suspicion after which nothing was done."""
        self._idle_at_s.append(time.time())

    @property
    def full(self) -> bool:
        """Whether so many suspicions came to nothing that another one would be no news; said once an hour at most."""
        was, self._full = self._full, False
        if len(self._idle_at_s) == self._idle_at_s.maxlen and time.time() - self._idle_at_s[0] < _WINDOW_S:
            self._full = True
            if not was:
                until = time.strftime("%H:%M", time.localtime(self._idle_at_s[0] + _WINDOW_S))
                text = (
                    f"{len(self._idle_at_s)} suspicions within an hour came to nothing: until {until} silence is "
                    "looked into at the action limit only. If the program often pauses: announce it with "
                    "progress.phase(…), or raise supervise.suspicion_floor_s"
                )
                self._s.folder.tell("note", text)
        return self._full

    def reopen(self, name: str) -> incident_page.Record | None:
        """Go on with the incident that the attempt before this one left open."""
        record = None
        with contextlib.suppress(OSError):
            record = incident_page.load((self._s.folder.path / name / "incident.json").read_bytes())
        if record is None or "first_new_step" in record.times or record.attempt in self._present():
            return None
        record.stamp("running")
        return record

    def _present(self) -> tuple[str, str]:
        """Names of the attempt that runs, where a supervisor before us has started it."""
        s = self._s
        return s.channel.running_attempt if s.channel is not None else "", s.context.attempt_id.key

    def save(self, record: incident_page.Record) -> None:
        """Write the incident's page and its twin for tools."""
        self._s.folder.write(f"{record.id}/incident.json", record.to_json())
        self._s.folder.write(f"{record.id}/report.md", record.page())
