"""Looks every half minute whether robust.yaml has changed, and tells the daemon once in which mode this service is.

Both may hang, as on a file server or a slurmctld that does not answer, and so are a child's work. A child that looks
ends at once: nothing is left running for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodewatch.child import ChildSource, Message, Send
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.ring import Seen

NAME = "settings"
EVERY_S = 30.0
SILENT_S = 60.0
SPREAD_S = 20.0
"""The services of all nodes start at once when a site is set up or booted; their calls to Slurm do not."""
LONGEST_GAP_S = 3600.0
"""The longest time between two tries to tell the daemon; the first is after `EVERY_S`, and each gap is doubled."""


class SettingsFile(ChildSource):
    """robust.yaml, as it lies on this node; no source of findings.

    Args:
        path: The file.
        identity: The identity of the file when it was read, from `identity_of`.
        tell: Tells the daemon the mode, and returns why it could not; None if nothing is to be told. Runs in the child.
    """

    def __init__(self, path: str, identity: str, tell: Callable[[], str] | None = None) -> None:
        super().__init__(NAME, self._look, self._saw, every_s=EVERY_S, silent_s=SILENT_S)
        self._path, self._identity, self._tell = path, identity, tell
        self._telling = False
        self._tell_at_s, self._gap_s = 0.0, EVERY_S
        self.changed = False
        """The file is another one than when it was last read, or seen; for the service, which sets it back."""

    def _start(self, moment: Moment) -> None:
        self._telling = self._tell is not None and moment.monotonic_s >= self._tell_at_s
        super()._start(moment)

    def _look(self, send: Send) -> None:
        send({"identity": identity_of(self._path)})
        if self._telling and self._tell is not None:
            time.sleep(random.uniform(0, SPREAD_S))  # noqa: S311 (no secret)
            send({"problem": self._tell()})

    def _saw(self, message: Message, moment: Moment) -> list[Seen]:
        if (identity := message.get("identity", self._identity)) != self._identity:
            self._identity, self.changed = identity, True
        if message.get("problem") == "":
            self._tell = None
        elif "problem" in message:
            self._tell_at_s, self._gap_s = moment.monotonic_s + self._gap_s, min(2 * self._gap_s, LONGEST_GAP_S)
        return []


def identity_of(path: str) -> str:
    """Return what tells one version of a file from another; why it cannot be looked at, if it cannot."""
    try:
        return state_folder.identity(path)
    except OSError as error:
        return f"error {error.errno}"
