"""Finds other programs that restart the job, by its command, environment and batch script. Pure.

Two restarters do not harm each other's data, but each takes the other's restart for a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\baccelerate\s+launch\b")
_MAX_RESTARTS = re.compile(r"--max[-_]restarts[=\s]+(\d{1,6})")
_ELASTIC = re.compile(r"--nnodes[=\s]+(\d+:\d+)")
_SUBMITIT = re.compile(r"\bsubmitit\b")
_REQUEUE = re.compile(r"^[^#\n]*\bscontrol[ \t]+(?:\S+[ \t]+){0,4}?requeue(?:hold)?\b", re.MULTILINE)

_DEEPSPEED = re.compile(r"(?:^|/)deepspeed\Z|\Adeepspeed\.launcher\.runner\Z")
_LAUNCHER = re.compile(r"--launcher[=\s]+(\w+)")
_SEVERAL_NODES = re.compile(r"(?:^|\s)(?:-H|--hostfile|--force_multi)\b|--num_nodes[=\s]+(?!1\b)\d")


def found(command: Sequence[str], env: Mapping[str, str], script: str = "") -> list[str]:
    """Return a sentence for each other restarter, with what to type so that only one remains.

    The batch script is empty if it is not known.
    """
    words = " ".join(command)
    out = []
    restarts = _MAX_RESTARTS.search(words)
    number = int(restarts[1]) if restarts else _count(env.get("PET_MAX_RESTARTS", ""))
    if number > 0 and (_TORCHRUN.search(words) or not restarts):
        out.append(
            f"torchrun starts failed workers anew itself, up to {number} times, on the same nodes: a failure comes "
            "here only after that. To leave all restarts to srobust: --max-restarts=0"
        )
    elastic = _ELASTIC.search(words)
    if elastic and _TORCHRUN.search(words):
        out.append(
            f"torchrun goes on with fewer nodes (--nnodes={elastic[1]}): a lost node is no failure to it, and is left "
            "only when the step ends. To have lost nodes replaced: give --nnodes one number"
        )
    if _count(env.get("TORCHELASTIC_MAX_RESTARTS", "")) > 0:
        out.append(
            "srobust run was started by a torchrun that starts its workers anew itself: give that one --max-restarts=0"
        )
    if _SUBMITIT.search(words) or env.get("SUBMITIT_EXECUTOR"):
        out.append(
            "submitit requeues the job itself when its signal comes (time limit, preemption): such a requeue counts as "
            "wanted here. Failures are srobust's: give the executor no retries of its own"
        )
    if any(key.startswith("PL_") for key in env):
        out.append(
            "Lightning may requeue the job itself when its signal comes: such a requeue counts as wanted here. To have "
            "one restarter only: SLURMEnvironment(auto_requeue=False)"
        )
    line = _REQUEUE.search(script)
    if line:
        out.append(
            f"the batch script requeues its job itself ({line[0].strip()[:80]!r}): where a step failed, srobust has "
            "decided on that before the script's next line runs. Keep it for the time limit only"
        )
    return out


def leaves_the_step(command: Sequence[str]) -> str:
    """Return why a command cannot be watched from here, since its ranks would run outside this step; or empty.

    DeepSpeed's own launcher starts one process on each node, over ssh or by an srun of its own.
    """
    words = list(command)
    at = next((n for n, word in enumerate(words) if _DEEPSPEED.search(word)), None)
    if at is None or "--no_ssh" in words:
        return ""
    told = " ".join(words[at:])
    if launcher := _LAUNCHER.search(told):
        if launcher[1].lower() == "slurm":
            return (
                "deepspeed --launcher=slurm calls srun itself, inside of this step: call deepspeed from the batch "
                "script, with srun_wrapper first on PATH, so that its srun is the one that is supervised"
            )
    elif not _SEVERAL_NODES.search(told):
        return ""
    return (
        "deepspeed's launcher starts its ranks over ssh or mpirun, outside of this step, where nobody could find or "
        "end them: use --launcher=slurm from the batch script, or start the ranks by srun "
        "(srobust run --ntasks-per-node=8 python train.py)"
    )


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0
