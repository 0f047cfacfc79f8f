"""Collects what a probe takes along from NVML: plain JSON, only what its check asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from slurm_robust.nodecheck.engine import check_state, gpu_profiles
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.nvml.session import limit_s, of

NVML_LANE: dict[str, Any] = {"lane": "nvml", "deadline_s": 12.0}
"""The fields of every check that asks NVML. A driver without persistence mode takes seconds to wake each GPU, and
slurmd's prolog has 20 s (`SROBUST_TIMEOUT_S`)."""
_LEAST_S = 0.5

Facts = dict[str, Any]


def take(context: Context, *names: str, kept_as: str = "") -> Facts:
    """Read these fields of all GPUs.

    `names` are those of `fields.READERS` and `fields.FIELD_VALUES`. `kept_as` is the name of a check that remembers:
    its facts also have those of `check_state.since`.

    Returns:
        state, detail, hung, system as in `Session`; stage; gpus: index, bus, minor, uuid, model, lost, lost_meanwhile
        (True if no earlier check tells of it), profile, and of the names asked for `values` and `errors` (NVML's
        error by name).
    """
    end_s = time.monotonic() + limit_s(context)
    session = of(context)
    session.read(names, max(_LEAST_S, end_s - time.monotonic()))
    facts: Facts = {
        "state": session.state,
        "detail": session.detail,
        "hung": dict(session.hung),
        "system": dict(session.system),
        "stage": context.stage,
        "gpus": [_gpu(gpu, names, context, session.told_lost) for gpu in session.gpus],
    }
    if kept_as:
        facts.update(check_state.since(context, kept_as))
    return facts


def _gpu(gpu: dict[str, Any], names: tuple[str, ...], context: Context, told_lost: frozenset[int]) -> dict[str, Any]:
    told = {key: gpu[key] for key in ("index", "bus", "minor", "uuid", "model", "lost")}
    told["lost_meanwhile"] = bool(gpu["lost"]) and gpu["index"] not in told_lost
    told["profile"] = gpu_profiles.of(gpu["model"], context.gpu_profiles)
    told["values"] = {name: gpu["values"][name] for name in names if name in gpu["values"]}
    told["errors"] = {name: gpu["errors"][name] for name in names if name in gpu["errors"]}
    if "handle" in gpu["errors"]:
        told["errors"]["handle"] = gpu["errors"]["handle"]
    return told


def probe_of(*names: str, kept_as: str = "") -> Callable[[Context, Any], Facts]:
    """Return a probe that takes these fields and nothing else."""

    def probe(context: Context, _: Any) -> Facts:
        return take(context, *names, kept_as=kept_as)

    return probe
