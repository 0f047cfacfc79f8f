"""Hangs, crashes and CUDA errors of ranks on GPUs: what is captured of them, and whom the judge names.

The cases are those of `benchmarks/localize_real.py`, with NCCL where it takes these ranks. Ranks that share a GPU take
turns on it, which NCCL allows only when it is told to; where it does not, gloo moves tensors of GPUs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from real.cases import CASES, ON_GPUS, Case
from real.transport import Transport

from gpu_proof import slurm_packages
from gpu_proof.outcome import Status, Step
from gpu_proof.place import ROOT, Place

if TYPE_CHECKING:
    from real.stage import Outcome, Stage

RANKS = 4
_SUM_ALL = ROOT / "scripts" / "gpu_proof" / "sum_all.py"
_LEAST_S = 30.0
"""A case takes 10 to 25 s, most of it for torch and CUDA to start."""
_EACH_ITS_OWN: tuple[tuple[str, dict[str, str]], ...] = (("a GPU for each rank", {}),)
_SHARING = (
    ("ranks that share GPUs, as NCCL ≥ 2.30 allows", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
    ("ranks that share GPUs, each as a host of its own", {"NCCL_HOSTID": "proof-{rank}", "NCCL_IB_DISABLE": "1"}),
)


def steps(place: Place) -> Iterator[Step]:
    """NCCL first; then a case after another, as long as there is time; then one under Slurm."""
    transport, step = _transport(place)
    yield step
    if transport is None:
        return
    cases = [case for case in CASES if case.name == "stopped"] if place.rehearsal else ON_GPUS
    for case in cases:
        if place.left_s < _LEAST_S:
            yield Step(case.name, Status.NOT_RUN, "no time was left")
        else:
            yield _case(place, case, transport)
    yield _under_slurm(place, transport)


def _transport(place: Place) -> tuple[Transport | None, Step]:
    """What these ranks can speak over: NCCL if it takes them, else gloo; None for nothing."""
    name, failed = "ranks sum a tensor over NCCL", {}
    if place.rehearsal:
        done = _sum_all(place, Transport())
        status = Status.FAILED if done else Status.HELD
        return Transport(), Step("ranks sum a tensor", status, done or f"{RANKS} ranks on this CPU, over gloo")
    gpus = int(place.python("-c", "import torch; print(torch.cuda.device_count())").stdout.strip() or 0)
    if not gpus:
        return None, Step(name, Status.NOT_RUN, "torch sees no CUDA device")
    for words, variables in _SHARING if gpus < RANKS else _EACH_ITS_OWN:
        transport = Transport("nccl", "cuda", variables)
        failed[words] = _sum_all(place, transport)
        if not failed[words]:
            return transport, Step(name, Status.HELD, f"{RANKS} ranks on {gpus} GPUs: {words}", dict(failed))
    transport = Transport("gloo", "cuda")
    if why := _sum_all(place, transport):
        return None, Step(name, Status.FAILED, f"neither over NCCL nor over gloo: {why}", dict(failed))
    said = f"NCCL does not take {RANKS} ranks on {gpus} GPUs: what follows is over gloo, with tensors on GPUs"
    return transport, Step(name, Status.NOT_RUN, said, dict(failed))


def _sum_all(place: Place, transport: Transport) -> str:
    """Whether each rank gets the sum of all: empty, or what went wrong."""
    rendezvous = place.folder / f"sum-{os.urandom(4).hex()}"
    common = {**os.environ, **transport.variables, "WORLD_SIZE": str(RANKS), "NCCL_DEBUG": "WARN"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(_SUM_ALL), str(rendezvous), *transport.words],
            env={**common, "RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [p.communicate(timeout=max(1.0, min(60.0, place.left_s)))[0] for p in processes]
    except subprocess.TimeoutExpired:
        return "it does not come to an end"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    bad = [text for process, text in zip(processes, said, strict=True) if process.returncode]
    return bad[0].strip()[-800:] if bad else ""


def _case(place: Place, case: Case, transport: Transport) -> Step:
    """Play it, with recorder dumps and RAS as the supervisor asks for them."""
    from real.stage import Stage  # noqa: PLC0415 (it loads the supervisor)

    stage = Stage(case, place.folder / case.name, recorder=True, transport=transport)
    try:
        found = asyncio.run(asyncio.wait_for(stage.play(), place.left_s))
    except (TimeoutError, asyncio.TimeoutError) as error:
        return Step(case.name, Status.FAILED, str(error) or "no time was left")
    return _judged(case.name, found, _evidence(stage))


def _judged(name: str, found: Outcome, figures: dict[str, Any]) -> Step:
    held = found.how in ("exact", "rightly none")
    said = f"{found.how}, {found.took_s:.1f} s after the fault: {found.told}"
    figures |= {"named": found.named, "right": found.case.right, "acted_on": found.acted_on, "took_s": found.took_s}
    return Step(name, Status.HELD if held else Status.FAILED, said, figures)


def _evidence(stage: Stage) -> dict[str, Any]:
    """What the verdict could rest on."""
    captures = stage.investigation.captures
    processes = [p for capture in captures for rank in capture.ranks for p in rank.processes]
    return {
        "captures": len(captures),
        "stacks": sum(not p.error for p in processes),
        "without_a_stack": sorted({p.error for p in processes if p.error}),
        "recorder_dumps_of_ranks": sorted(stage.investigation.recorder),
        "ras_answers": len(stage.fleet.ras),
    }


def _under_slurm(place: Place, transport: Transport) -> Step:
    """One case as a job of a real Slurm, started and judged by `srobust run`, if Slurm is here or can be installed."""
    name = "a stopped rank under `srobust run`"
    if why := slurm_packages.missing(place):
        return Step(name, Status.NOT_RUN, why)
    if place.left_s < _LEAST_S:
        return Step(name, Status.NOT_RUN, "no time was left")
    from real.under_slurm import SlurmStage, bring_up  # noqa: PLC0415 (the same)

    from slurm_robust.devcluster.spec import DevClusterError  # noqa: PLC0415 (the same)

    case = next(case for case in CASES if case.name == "stopped")
    try:
        cluster = bring_up()
    except DevClusterError as error:
        return Step(name, Status.NOT_RUN, f"no cluster could be made here: {error}")
    try:
        found = asyncio.run(
            asyncio.wait_for(SlurmStage(case, place.folder / "slurm", cluster, transport).play(), place.left_s)
        )
    except (TimeoutError, asyncio.TimeoutError) as error:
        return Step(name, Status.FAILED, str(error) or "no time was left")
    finally:
        cluster.down()
    return _judged(name, found, {})
