"""The GPU checks against NVIDIA's own driver: what it answers, what they make of that, and what they cost."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_proof.outcome import Status, Step
from gpu_proof.place import ROOT, Place
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.nvml import facts
from slurm_robust.nodecheck.nvml.fields import FIELD_VALUES, READERS

REFCNT = Path("/sys/module/nvidia_uvm/refcnt")
EXPECTED_ERRORS = frozenset({"not_supported", "function_not_found", "no_permission"})
"""What a board or a driver may say of a field without anything being wrong."""
ROUNDS = 5


def steps(place: Place) -> Iterator[Step]:
    """Fields, nvidia-smi beside them, the checks, their cost, the prolog, who uses the GPU."""
    site = _site(place)
    found = facts.take(_context(place, site), *READERS, *FIELD_VALUES)
    yield _fields(found)
    yield _beside_nvidia_smi(place, found)
    yield _findings(place, site)
    yield _cost(place, site)
    yield _prolog(place, site)
    yield _users_of_the_driver(place)


def _site(place: Place) -> Path:
    """A robust.yaml for this run, with a state folder of its own."""
    library = ""
    if place.rehearsal:
        from fake_gpus import compile_fake  # noqa: PLC0415 (a real proof carries no tests' compiler)

        library = str(compile_fake(place.folder))
        (place.folder / "scenario").write_text("gpus=2\n")
    log = place.folder / "kmsg"
    log.write_text("[    1.000000] usb 1-1: a line of a kernel log\n")
    path = place.folder / "robust.yaml"
    own = {"cache_dir": str(place.folder / "cache"), "deadline_s": 30}
    own |= {"nvml_library": library, "kmsg": str(log)} if place.rehearsal else {}
    path.write_text(json.dumps({"nodecheck": own}))  # JSON is YAML
    return path


def _context(place: Place, site: Path) -> Context:
    library = json.loads(site.read_text())["nodecheck"].get("nvml_library", "")
    return Context("proof", nvml_library=library, cache_dir=place.folder / "cache", deadline_s=30.0)


def _fields(found: Mapping[str, Any]) -> Step:
    """Everything that any check asks NVML for, asked at once."""
    name = "every NVML field that a check asks for"
    if found["state"]:
        return Step(name, Status.NOT_RUN, f"{found['state']}: {found['detail']}")
    gpus = found["gpus"]
    errors = {f"GPU {g['index']} {field}": error for g in gpus for field, error in g["errors"].items()}
    strange = {what: error for what, error in errors.items() if error not in EXPECTED_ERRORS}
    figures = {
        "system": found["system"],
        "gpus": [{k: g[k] for k in ("model", "values", "errors", "lost")} for g in gpus],
    }
    answered = sum(len(g["values"]) for g in gpus)
    said = f"{len(gpus)} GPUs; {answered} values, {len(errors)} without one"
    if strange or not gpus or any(g["lost"] for g in gpus):
        return Step(name, Status.FAILED, f"{said}; unexpected: {strange or 'no GPU, or a lost one'}", figures)
    return Step(name, Status.HELD, said, figures)


_SMI = {"persistence": "persistence_mode", "mig_mode": "mig.mode.current", "ecc_mode": "ecc.mode.current"}


def _beside_nvidia_smi(place: Place, found: Mapping[str, Any]) -> Step:
    """Persistence, MIG and ECC as nvidia-smi has them."""
    name = "nvidia-smi says the same"
    if place.rehearsal or shutil.which("nvidia-smi") is None:
        return Step(name, Status.NOT_RUN, "a rehearsal" if place.rehearsal else "no nvidia-smi here")
    done = place.run(["nvidia-smi", f"--query-gpu={','.join(_SMI.values())}", "--format=csv,noheader"], 30)
    theirs = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    different = []
    for gpu, row in zip(found["gpus"], theirs, strict=False):
        for field, said in zip(_SMI, row, strict=True):
            value = gpu["values"].get(field)
            ours = value[0] if isinstance(value, list | tuple) else value
            wanted = {"Enabled": 1, "Disabled": 0}.get(said)
            if ours != wanted:
                different.append(f"GPU {gpu['index']}: {field} is {value}, nvidia-smi says {said}")
    if len(theirs) != len(found["gpus"]):
        different.append(f"{len(found['gpus'])} GPUs, nvidia-smi has {len(theirs)}")
    status = Status.FAILED if different else Status.HELD
    return Step(name, status, "; ".join(different) or f"of {len(theirs)} GPUs", {"nvidia-smi": theirs})


def _findings(place: Place, site: Path) -> Step:
    """All GPU checks: on a GPU that works, none may fail, and none may know nothing."""
    checks = place.checks("gpu", "--config", str(site))
    by_status: dict[str, list[str]] = {}
    for check in checks:
        by_status.setdefault(check["status"], []).append(f"{check['name']} ({check['sentence']})")
    figures = {check["name"]: {k: check[k] for k in ("status", "reason", "sentence")} for check in checks}
    bad = by_status.get("fail", []) + by_status.get("unknown", [])
    said = ", ".join(f"{len(names)} {status}" for status, names in sorted(by_status.items()))
    if bad:
        return Step("all GPU checks", Status.FAILED, f"{said}: {'; '.join(bad)}", figures)
    warned = by_status.get("warn", [])
    return Step("all GPU checks", Status.HELD, said + (f": {'; '.join(warned)}" if warned else ""), figures)


def _cost(place: Place, site: Path) -> Step:
    """Milliseconds of each check, the median of a few runs."""
    took: dict[str, list[float]] = {}
    for _ in range(2 if place.rehearsal else ROUNDS):
        for check in place.checks("gpu", "--config", str(site)):
            took.setdefault(check["name"], []).append(check["duration_ms"])
    medians = {f"{name}_ms": statistics.median(values) for name, values in took.items()}
    slowest = max(medians, key=lambda name: medians[name])
    return Step("cost of each check", Status.HELD, f"the slowest: {slowest} {medians[slowest]:.1f}", medians)


def _prolog(place: Place, site: Path) -> Step:
    """The prolog as slurmd runs it: with a fresh verdict, and with nothing kept."""
    settings = place.folder / "env"
    words = {"SROBUST_PYTHON": sys.executable, "SROBUST_CODE": str(ROOT), "SROBUST_CONFIG": str(site)}
    settings.write_text("".join(f"{key}={value}\n" for key, value in words.items()))
    prolog = [str(ROOT / "prolog" / "srobust-prolog"), str(settings)]
    took: dict[str, list[float]] = {"warm_ms": [], "cold_ms": []}
    said = ""
    for _ in range(2 if place.rehearsal else ROUNDS):
        for kind in ("cold_ms", "warm_ms"):
            if kind == "cold_ms":
                shutil.rmtree(place.folder / "cache", ignore_errors=True)
            began_s = time.perf_counter()
            done = place.run(prolog, 60, SLURMD_NODENAME="proof", SLURM_JOB_ID="1")
            took[kind].append(1000 * (time.perf_counter() - began_s))
            # It lets jobs start whatever happens: what it could not do, it only says.
            if done.returncode or done.stderr:
                said = f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    with settings.open("a") as more:
        more.write("SROBUST_VERBOSE=1\n")
    loud = place.run(prolog, 60, SLURMD_NODENAME="proof", SLURM_JOB_ID="1").stderr
    if "cached verdict: " not in loud:
        said = said or f"the run after a run is not the quick one: {loud.strip()[-500:]}"
    figures = {kind: statistics.median(values) for kind, values in took.items()}
    warm = f"{figures['warm_ms']:.0f} ms with a fresh verdict, {figures['cold_ms']:.0f} ms with nothing kept"
    return Step("the prolog", Status.FAILED if said else Status.HELD, said or warm, figures)


def _users_of_the_driver(place: Place) -> Step:
    """A CUDA process raises the counter that the warm prolog looks at, and gives it back."""
    name = "nvidia_uvm/refcnt tells of a CUDA process"
    if place.rehearsal or not REFCNT.exists():
        return Step(name, Status.NOT_RUN, "a rehearsal" if place.rehearsal else f"there is no {REFCNT}")
    before = int(REFCNT.read_text())
    program = "import torch; torch.ones(1, device='cuda'); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            process.kill()
            return Step(name, Status.NOT_RUN, "torch made no CUDA context: see the output")
        during = int(REFCNT.read_text())
        process.communicate(b"\n")
    after = int(REFCNT.read_text())
    held = during > before and after == before
    figures = {"before": before, "during": during, "after": after, "root": os.getuid() == 0}
    return Step(name, Status.HELD if held else Status.FAILED, f"{before} → {during} → {after}", figures)
