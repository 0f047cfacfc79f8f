"""All programs of `scripts/calm`, in the order of the table."""

from __future__ import annotations

# Importing a kind registers its programs.
import calm_clocks
import calm_ends
import calm_held_ends
import calm_held_meetings
import calm_held_numbers
import calm_held_output
import calm_held_processes
import calm_held_waits
import calm_learning
import calm_native
import calm_output
import calm_processes
import calm_tasks
import calm_waits
import calm_work
from calm_kit import ENTRIES, PROGRAMS, Program

KINDS = (
    calm_waits, calm_work, calm_processes, calm_output, calm_clocks, calm_ends, calm_tasks, calm_learning, calm_native,
    calm_held_processes, calm_held_meetings, calm_held_waits, calm_held_output, calm_held_numbers, calm_held_ends,
)  # fmt: skip
__all__ = ["ENTRIES", "KINDS", "PROGRAMS", "Program"]
