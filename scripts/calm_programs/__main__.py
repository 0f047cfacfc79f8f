"""Run one program of `scripts/calm` as a task: `python scripts/calm_programs NAME`."""

from __future__ import annotations

import sys

from calm_catalogue import ENTRIES
from calm_kit import note_start

if __name__ == "__main__":
    note_start(sys.argv[1])
    ENTRIES[sys.argv[1]]()
