"""Tells people what happened: reads the audit log, asks the planner, and feeds the process that hands over messages.

Nothing here waits for a target: the process gets a line when its pipe is empty, and its results are read when they
come. The journal keeps alerts that are still to be told, so that a restart does not lose them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from slurm_robust.config.notify import NotifyTarget
from slurm_robust.daemon import children, log_alerts
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.notify import planner
from slurm_robust.notify.alert import EVENTS, OVER, Alert, Delivery, OutletSettings
from slurm_robust.notify.planner import Rules, TargetState
from slurm_robust.notify.quiet_hours import is_quiet, zone_of

KEY = "notify"
EVERY_S = 1.0
ROWS = 500
REPEATED_S = 60.0
"""The time between two alerts of a lasting state (an open breaker, a trouble); the planner counts them."""
TROUBLE_S = 60.0
"""A trouble that is over sooner is nothing to be told of."""
ANSWER_S = 180.0
"""The process tells sooner than this what came of a message, or it hangs."""
WAIT_MAX_S = 60.0
LINE_LIMIT_BYTES = 64 * 1024


class _KeptTargets(msgspec.Struct):
    """The part of the notifier that the journal keeps."""

    events_row: int = -1
    targets: dict[str, TargetState] = {}


class Notifier:
    """The daemon's end. Errors here do not affect the rest of the daemon."""

    def __init__(self, context: DaemonContext, why_open: Callable[[], str]) -> None:
        self.context, self.why_open = context, why_open
        self.config = context.config.notify
        self._saved = context.journal.get(KEY)
        try:
            self._kept = msgspec.json.decode(self._saved, type=_KeptTargets) if self._saved else _KeptTargets()
        except msgspec.MsgspecError:
            self._kept = _KeptTargets()
        names = [target.name for target in self.config.targets]
        self._kept.targets = {name: self._kept.targets.get(name, TargetState()) for name in names}
        self._zones = {target.name: zone_of(target.time_zone) for target in self.config.targets}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: list[Delivery] = []
        self._handed_over_s: dict[str, float] = {}
        """When the process got the message that is under way, by target."""
        self._next_at_s = self._start_at_s = self._repeated_at_s = 0.0
        self._wait_s = 1.0
        self._troubled_since_s: dict[str, float] = {}
        self._over_since_s: dict[str, float] = {}
        """Alert's key → since when the trouble that people were told of is no more."""

    def restart_timers(self) -> None:
        """Limit remembered times to now, and read at once, since the clock was set back."""
        now_s = self.context.now_s()
        self._next_at_s = self._start_at_s = self._repeated_at_s = 0.0
        self._handed_over_s = {name: min(at_s, now_s) for name, at_s in self._handed_over_s.items()}
        self._troubled_since_s = {name: min(at_s, now_s) for name, at_s in self._troubled_since_s.items()}
        self._over_since_s = {key: min(at_s, now_s) for key, at_s in self._over_since_s.items()}
        for state in self._kept.targets.values():
            planner.clock_set_back(state, now_s)

    async def tick(self) -> None:
        """Read new alerts, and hand over the messages that are due; once a second at most."""
        now_s = self.context.now_s()
        if not self.config.targets or now_s < self._next_at_s <= now_s + EVERY_S:
            return
        self._next_at_s = now_s + EVERY_S
        for alert in (*self._logged(), *self._lasting(now_s)):
            for target in self.config.targets:
                state = self._kept.targets[target.name]
                if alert.event == OVER:
                    planner.over_by(state, alert)
                else:
                    planner.arrived(state, alert, self._rules(target))
        over = self._over(now_s)
        for state in self._kept.targets.values():
            planner.ended(state, over, now_s)
            for alert in self._back_or_gone(state, now_s):
                planner.over_by(state, alert)
            planner.remind(state, now_s)
        self._take_answers(now_s)
        await self._keep_running(now_s)
        for target in self.config.targets:
            self._hand_over(target, now_s)
        self._save()

    def shown(self) -> list[dict[str, Any]]:
        """Return each target, for the snapshot."""
        rows = ((target, self._kept.targets[target.name]) for target in self.config.targets)
        return [
            {
                "target": target.name,
                "kind": target.kind,
                "waiting": state.due,
                "sent": state.sent,
                "failed": state.failed,
                "given_up": state.given_up,
                "failing_since_s": state.failing_since_s or None,
                "error": state.error,
            }
            for target, state in rows
        ]

    def _rules(self, target: NotifyTarget) -> Rules:
        return Rules(
            target.name,
            self.context.cluster_name,
            frozenset(target.events) or frozenset(EVENTS),
            target.min_severity,
            "" if target.quiet_severity == "none" else target.quiet_severity,
            target.per_hour,
        )

    def _logged(self) -> list[Alert]:
        """Return the new alerts of the audit log. If the journal was never read, only later alerts count."""
        db, kept = self.context.journal.db, self._kept
        newest = db.execute("SELECT coalesce(max(rowid), 0) AS newest FROM events").fetchone()["newest"]
        # The newest row was deleted, and its number will be given again.
        kept.events_row = newest if kept.events_row < 0 else min(kept.events_row, newest)
        query = "SELECT rowid, at_s, what, text FROM events WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = db.execute(query, (kept.events_row, ROWS)).fetchall()
        if rows:
            kept.events_row = rows[-1]["rowid"]
        found = (log_alerts.alert_of(r["at_s"], r["what"], r["text"]) for r in rows)
        return [alert for alert in found if alert is not None]

    def _lasting(self, now_s: float) -> list[Alert]:
        """Return the alerts of lasting states: an open breaker, and obstacles to the daemon's work."""
        troubles = self.context.troubles
        self._troubled_since_s = {topic: self._troubled_since_s.get(topic, now_s) for topic in troubles}
        if 0 <= now_s - self._repeated_at_s < REPEATED_S:
            return []
        lasted = [t for t, since_s in self._troubled_since_s.items() if now_s - since_s >= TROUBLE_S]
        found = [log_alerts.trouble(now_s, topic, troubles[topic]) for topic in lasted]
        if why := self.why_open():
            found.append(log_alerts.breaker_open(now_s, why))
        if found or not troubles:
            self._repeated_at_s = now_s
        return found

    def _over(self, now_s: float) -> list[str]:
        """Return the keys of the troubles that were told, and have been over for a while."""
        told = {key for state in self._kept.targets.values() for key in state.repetitions}
        now = {log_alerts.trouble_key(topic, text) for topic, text in self.context.troubles.items()}
        over = sorted(key for key in told - now if key.startswith(log_alerts.TROUBLE))
        self._over_since_s = {key: self._over_since_s.get(key, now_s) for key in over}
        return [key for key, since_s in self._over_since_s.items() if now_s - since_s >= TROUBLE_S]

    def _back_or_gone(self, state: TargetState, now_s: float) -> list[Alert]:
        """Return that jobs which were told as not brought back run again, or are gone."""
        readings = self.context.readings
        told = [r.alert for r in state.repetitions.values() if r.alert.event == "not_resumed" and r.alert.job]
        told = [alert for alert in told if readings.jobs_at_s > alert.at_s]
        if not told or self.context.client.unread.get("jobs"):
            return []
        jobs = {job.ref.address: job for job in readings.jobs.values()}
        found = (log_alerts.back_or_gone(alert, jobs.get(alert.job), now_s) for alert in told)
        return [alert for alert in found if alert is not None]

    # --- the process

    def _take_answers(self, now_s: float) -> None:
        answers, self._answers = self._answers, []
        for delivery in answers:
            if self._handed_over_s.pop(delivery.target, None) is not None:
                self._answered(delivery, now_s)
        process = self._process
        if process is None or process.returncode is not None:
            return
        if any(now_s - at_s > ANSWER_S for at_s in self._handed_over_s.values()):
            self._handed_over_s = {}
            self.context.alert("notify.hangs", "the process that hands over messages hangs: it is started again")
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _answered(self, delivery: Delivery, now_s: float) -> None:
        state = self._kept.targets.get(delivery.target)
        if state is None:
            return
        given_up = state.given_up
        wait_s = planner.answered(state, delivery, now_s)
        about = f"{delivery.target}: {delivery.message}"
        if wait_s is not None:
            self.context.alert("notify.failed", f"{about}; tried again in {wait_s:.0f} s", key=delivery.target)
        elif state.given_up > given_up:
            self.context.alert("notify.given_up", f"{about}; this message is given up", key=delivery.target)

    async def _keep_running(self, now_s: float) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            return
        if process is not None:
            self.context.alert(
                "notify.ended", f"the process for messages ended with {process.returncode}", key="notify"
            )
            self._process, self._handed_over_s, self._start_at_s = None, {}, now_s + self._wait_s
            self._wait_s = min(WAIT_MAX_S, self._wait_s * 2)
        if now_s < self._start_at_s <= now_s + WAIT_MAX_S:
            return
        argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "notify"]
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, limit=LINE_LIMIT_BYTES, start_new_session=True
            )
        except OSError as error:
            self._start_at_s = now_s + WAIT_MAX_S
            self.context.alert("notify.unstartable", str(error), key="notify")
            return
        self._reading = asyncio.create_task(self._read(self._process))
        for target in self.config.targets:
            if self._zones[target.name] is None:
                text = f"{target.name}: this machine does not know {target.time_zone}: its quiet hours are taken in UTC"
                self.context.alert("notify.time_zone", f"{text}; apt-get install tzdata", key=target.name)
        self._write(OutletSettings(msgspec.to_builtins(self.config)))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Collect what came of the messages, until the process ends."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._answers.append(msgspec.json.decode(line, type=Delivery))
                self._wait_s = 1.0
        except (ValueError, msgspec.MsgspecError):
            process.kill()
        await process.wait()

    def _hand_over(self, target: NotifyTarget, now_s: float) -> None:
        pipe = self._process.stdin if self._process else None
        if target.name in self._handed_over_s or pipe is None or pipe.is_closing():
            return
        if pipe.transport.get_write_buffer_size() > 0:
            return
        zone = self._zones[target.name] or dt.timezone.utc
        quiet = is_quiet(target.quiet_hours, zone, now_s)
        state = self._kept.targets[target.name]
        letter = planner.next_letter(state, self._rules(target), now_s, quiet=quiet)
        if letter is not None:
            self._handed_over_s[target.name] = now_s
            self._write(letter)

    def _write(self, value: msgspec.Struct) -> None:
        pipe = self._process.stdin if self._process else None
        if pipe is not None:
            pipe.write(msgspec.json.encode(value) + b"\n")

    def _save(self) -> None:
        text = msgspec.json.encode(self._kept).decode()
        if text == self._saved:
            return
        try:
            self.context.journal.put(KEY, text)
        except sqlite3.OperationalError:
            return  # a full disk, of which people are told all the same: it is remembered here
        self._saved = text

    async def close(self) -> None:
        """End the process by closing its input; a message under way is handed over again after the next start."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        await children.end(process)
        if self._reading is not None:
            await self._reading
        self._take_answers(self.context.now_s())
        self._save()
