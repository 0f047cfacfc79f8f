"""The incidents of one job, as its supervisor writes them down."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from slurm_robust.supervise import incident

if TYPE_CHECKING:
    from slurm_robust.supervise.supervisor import Supervisor


class Book:
    """Opens incidents, and writes their pages."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._s = supervisor

    def open(self, fault_at_s: float) -> incident.Record:
        """A new incident; one that is still open failed before its first new step."""
        s = self._s
        if s.record is not None:
            s.record.notes.append("The attempt that followed failed before its first new step.")
            self.save(s.record)
        now = time.time()
        name = f"{s.context.name.replace('+', '_')}-r{s.context.job.restart_count}-{int(now)}"
        s.record = incident.Record(name, s.context.name, s.present.fleet.attempt or s.context.attempt_id.key, now)
        s.record.stamp("fault", fault_at_s)
        s.record.stamp("suspected", now)
        return s.record

    def reopen(self, name: str) -> incident.Record | None:
        """Go on with the incident that the attempt before this one left open."""
        record = None
        with contextlib.suppress(OSError):
            record = incident.load((self._s.folder.path / name / "incident.json").read_bytes())
        if record is None or "first_new_step" in record.times:
            return None
        record.stamp("running")
        return record

    def save(self, record: incident.Record) -> None:
        """Write the incident's page and its twin for tools."""
        self._s.folder.write(f"{record.id}/incident.json", record.to_json())
        self._s.folder.write(f"{record.id}/report.md", record.page())
