"""Reads the report's pages, which the daemon makes once an hour, by name, and only known names."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from slurm_robust.wire import plain_file

PAGES: Mapping[str, str] = {"day.html": "the last day", "week.html": "the last week", "month.html": "the last 30 days"}
"""File → the period of the page."""
MAX_BYTES = 32 << 20
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class ReportFiles:
    """The files in the daemon's folder `pages`; none if there is no such folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def shown(self) -> Mapping[str, str]:
        """The pages that are shown, or will be: file → period."""
        return PAGES if self._folder is not None else {}

    def made_at_s(self, name: str) -> float | None:
        """Return when this page was made; None if it does not exist."""
        try:
            state = os.lstat(self._path(name))
        except (OSError, LookupError):
            return None
        return state.st_mtime if stat.S_ISREG(state.st_mode) else None

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the page, and the content policy that allows only its own scripts; None if there is no page."""
        try:
            body = plain_file.read(self._path(name), MAX_BYTES + 1)
        except (OSError, LookupError):
            return None
        return (body, policy(body)) if len(body) <= MAX_BYTES else None

    def _path(self, name: str) -> Path:
        if self._folder is None or name not in PAGES:
            raise LookupError(name)
        return self._folder / name


def policy(body: bytes) -> str:
    """Return the policy of a report's page, which is one file: its styles and scripts are inside.

    The page is nevertheless kept apart from the dashboard: in the sandbox it has an origin of its own, so it can
    neither read the dashboard nor use its cookie.
    """
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(body)]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests[:16]) or "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {scripts}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-popups"
    )
