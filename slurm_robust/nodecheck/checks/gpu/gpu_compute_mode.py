"""May programs use the GPUs as jobs need it?"""

from __future__ import annotations

from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, CheckError, Facts, Option, Options
from slurm_robust.nodecheck.nvml.facts import probe_of
from slurm_robust.nodecheck.nvml.judging import Complaint, answered, odd_ones, settle, silent, untold
from slurm_robust.nodecheck.nvml.session import DEADLINE_S

_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_REMEDY = "`nvidia-smi -i N -c 0` (default)"


def judge(facts: Facts, options: Options) -> Finding:
    """`prohibited` fails, as does another mode than the site has named; one GPU unlike the others warns.

    Raises:
        CheckError: the option names a mode that does not exist.
    """
    wanted = options["mode"]
    if wanted not in ("", *_MODES.values()):
        raise CheckError(f"nodecheck.options.gpu_compute_mode.mode: {wanted!r} is none of {', '.join(_MODES.values())}")
    if (nothing := silent(facts) or untold(facts, "compute_mode", "compute mode")) is not None:
        return nothing
    said = []
    told = answered(facts, "compute_mode")
    for gpu, mode in told:
        name = _MODES.get(mode, str(mode))
        if wanted and name != wanted:
            words = f"compute mode is {name} instead of {wanted}"
            said.append(Complaint(Status.FAIL, "compute_mode", words, "`nvidia-smi -i N -c MODE`", gpu))
        elif mode == 2 and not wanted:
            words = "compute mode is prohibited: no CUDA program starts"
            said.append(Complaint(Status.FAIL, "compute_prohibited", words, _REMEDY, gpu))
    if not said:
        for gpu, mode in odd_ones(told):
            words = f"compute mode is {_MODES.get(mode, mode)}, unlike the other GPUs'"
            said.append(Complaint(Status.WARN, "compute_odd", words, _REMEDY, gpu))
    names = sorted({_MODES.get(mode, str(mode)) for _, mode in told})
    return settle(said, ("compute_mode_fits", f"compute mode is {' and '.join(names)}"))


check = Check(
    name="gpu_compute_mode",
    question="May programs use the GPUs as jobs need it?",
    reads="NVML: compute mode",
    cost="one call a GPU, under 1 ms",
    stages=STAGES,
    probe=probe_of("compute_mode"),
    judge=judge,
    lane="nvml",
    deadline_s=DEADLINE_S,
    options={
        "mode": Option(
            "",
            "mode that every GPU must have: default, exclusive_process, exclusive_thread; empty does not say",
            "ours",
        )
    },
)
