"""May programs use the GPUs as jobs need it?"""

from __future__ import annotations

from slurm_robust.nodecheck.checks import Check, CheckError, Facts, Finding, Option, Options
from slurm_robust.nodecheck.nvml.facts import NVML_LANE, probe_of
from slurm_robust.nodecheck.nvml.judging import Fault, conclude_gpus, outliers, reported, unanswered, unreported

_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_REMEDY = "`nvidia-smi -i N -c 0` (default)"


def validate(options: Options) -> None:
    """Refuse a mode that does not exist."""
    wanted = options["mode"]
    if wanted not in ("", *_MODES.values()):
        raise CheckError(
            f"nodecheck.options.gpu_compute_mode.mode: {wanted!r} is not one of {', '.join(_MODES.values())}"
        )


def judge(facts: Facts, options: Options) -> Finding:
    """Fail for `prohibited`, or another mode than the site has named; warn of one GPU unlike the others.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    wanted = options["mode"]
    validate(options)
    if (nothing := unanswered(facts) or unreported(facts, "compute_mode", "compute mode")) is not None:
        return nothing
    faults = []
    told = reported(facts, "compute_mode")
    for gpu, mode in told:
        name = _MODES.get(mode, str(mode))
        if wanted and name != wanted:
            text = f"compute mode is {name} instead of {wanted}"
            faults.append(Fault.fail("compute_mode", text, "`nvidia-smi -i N -c MODE`", gpu))
        elif mode == 2 and not wanted:
            text = "compute mode is prohibited: no CUDA program starts"
            faults.append(Fault.fail("compute_prohibited", text, _REMEDY, gpu))
    if not faults:
        for gpu, mode in outliers(told):
            text = f"compute mode is {_MODES.get(mode, mode)}, unlike the other GPUs'"
            faults.append(Fault.warn("compute_odd", text, _REMEDY, gpu))
    names = sorted({_MODES.get(mode, str(mode)) for _, mode in told})
    return conclude_gpus(faults, ("compute_mode_fits", f"compute mode is {' and '.join(names)}"))


probe = probe_of("compute_mode")
check = Check(
    **Check.parts_of(__name__),
    **NVML_LANE,
    reads="NVML: compute mode",
    cost="one call a GPU, under 1 ms",
    options={
        "mode": Option("", "mode of every GPU: default, exclusive_process or exclusive_thread; empty: any", "ours")
    },
)
