"""Compares GPU settings before and after a diagnostic that may change them, and restores or reports them.

A lock of clocks (`nvidia-smi -lgc`) has no getter in NVML; it shows as a reason for the clocks of the moment. On an
idle GPU it is unknown whether the lock was there before, so it is reported and never removed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from slurm_robust.config import site as config
from slurm_robust.nodecheck.engine import choices
from slurm_robust.nodecheck.engine.context import Context, node_name
from slurm_robust.nodecheck.nvml.session import NvmlSession, of

_LIMIT_S = 4.0
_APPLICATION = ("sm_application_mhz", "memory_application_mhz")
_NAMES = ("persistence", *_APPLICATION, "clock_reasons")
_CLOCKS_ARE_SET = 0x2
"""The reason that NVML names ApplicationsClocksSetting: a person's or a tool's setting limits the clocks."""

Settings = Mapping[str, Mapping[str, Any]]
"""Bus address of a GPU → its settings, by the names of `fields.READERS`."""


def here() -> Context:
    """Return what a look at this node's GPUs needs, by the site's configuration.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    return choices.of(config.load(None)).context(node_name(), "full", os.environ)


def settings(context: Context) -> Settings:
    """Return the present settings of the GPUs, empty if they are not known; NVML is closed again."""
    session = _opened(context)
    session.close(_LIMIT_S)
    return {gpu["bus"]: dict(gpu["values"]) for gpu in session.gpus}


def put_back(before: Settings, context: Context, tool: str) -> list[str]:
    """Restore the GPUs' settings from before a tool ran.

    Returns:
        Sentences: each difference, with the action taken, or the command that a person must type.
    """
    session = _opened(context)
    told: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for gpu in session.gpus:
        was, now = before.get(gpu["bus"], {}), gpu["values"]
        if was.get("persistence") == 1 and now.get("persistence") == 0:
            error = session.change(gpu["index"], "nvmlDeviceSetPersistenceMode", 1, limit_s=_LIMIT_S)
            told["persistence mode off", error, "nvidia-smi -pm 1"].append(gpu["bus"])
        sm, memory = (was.get(name) for name in _APPLICATION)
        if sm and memory and all(name in now for name in _APPLICATION) and any(now[n] != was[n] for n in _APPLICATION):
            error = session.change(gpu["index"], "nvmlDeviceSetApplicationsClocks", memory, sm, limit_s=_LIMIT_S)
            clocks = ",".join(str(now[name]) for name in reversed(_APPLICATION))
            told[f"application clocks at {clocks} MHz", error, f"nvidia-smi -ac {memory},{sm}"].append(gpu["bus"])
        if now.get("clock_reasons", 0) & ~was.get("clock_reasons", _CLOCKS_ARE_SET) & _CLOCKS_ARE_SET:
            told["clocks that look locked", "this suite locks none", "nvidia-smi -rgc"].append(gpu["bus"])
    session.close(_LIMIT_S)
    if before and not session.gpus:
        return [f"what {tool} left on the GPUs is not known: {session.detail or 'NVML does not answer'}"]
    return [_sentence(tool, what, error, remedy, buses) for (what, error, remedy), buses in told.items()]


def _opened(context: Context) -> NvmlSession:
    context.shared.pop("nvml", None)
    session = of(context)
    session.read(_NAMES, _LIMIT_S)
    return session


def _sentence(tool: str, what: str, error: str, remedy: str, buses: list[str]) -> str:
    places = ", ".join(buses[:8]) + (", …" if len(buses) > 8 else "")
    where = f"{tool} left {what} on GPU{'s' if len(buses) > 1 else ''} {places}"
    return f"{where}: not put back ({error}); as root type {remedy}" if error else f"{where}: put back"
