"""What ties a check's look to the looks before it."""

from __future__ import annotations

from typing import Any

from slurm_robust.nodecheck.engine import check_state, counters
from slurm_robust.nodecheck.engine.context import Context


def since(context: Context, name: str) -> dict[str, Any]:
    """This boot (`boot_id`), seconds since it (`at_s`), and what the check `name` kept of its last look (`kept`)."""
    return {
        "boot_id": context.boot_id(),
        "at_s": counters.uptime_s(),
        "kept": check_state.load(context.cache_dir, name),
    }
