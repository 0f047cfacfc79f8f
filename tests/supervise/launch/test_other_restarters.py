"""Other restarters are seen where they can be seen, and nothing else is taken for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.supervise.launch.other_restarters import found, leaves_the_step


@pytest.mark.parametrize(
    ("command", "env", "script", "says"),
    [
        ("torchrun --nnodes 4 --max-restarts=3 train.py", {}, "", "--max-restarts=0"),
        ("python -m torch.distributed.run --max_restarts 2 train.py", {}, "", "up to 2 times"),
        ("accelerate launch --max_restarts 1 train.py", {}, "", "--max-restarts=0"),
        ("torchrun train.py", {"PET_MAX_RESTARTS": "5"}, "", "up to 5 times"),
        ("torchrun --nnodes=1:4 train.py", {}, "", "fewer nodes"),
        ("python train.py", {"TORCHELASTIC_MAX_RESTARTS": "3"}, "", "was started by a torchrun"),
        ("python -u -m submitit.core._submit /x", {}, "", "submitit requeues"),
        ("python train.py", {"PL_GLOBAL_SEED": "1"}, "", "auto_requeue=False"),
        ("python train.py", {}, "#!/bin/sh\nsrun x || scontrol requeue $SLURM_JOB_ID\n", "srun x || scontrol requeue"),
        ("python train.py", {}, "trap 'scontrol -M c requeuehold 5' USR1\n", "requeuehold"),
    ],
)
def test_a_restarter_is_named_with_what_to_type(command: str, env: dict[str, str], script: str, says: str) -> None:
    """One sentence for each."""
    told = found(command.split(), env, script)
    assert len(told) == 1
    assert says in told[0]


@pytest.mark.parametrize(
    ("command", "env", "script"),
    [
        ("torchrun --nnodes=4 --max-restarts=0 train.py", {}, ""),
        ("torchrun train.py", {"TORCHELASTIC_MAX_RESTARTS": "0", "PET_MAX_RESTARTS": "0"}, ""),
        ("python train.py --max-restarts=3", {}, ""),
        ("python train.py", {"SLURM_JOB_ID": "5"}, "#!/bin/sh\n#SBATCH --requeue\n# scontrol requeue\nsrun x\n"),
    ],
)
def test_a_job_without_one_is_told_nothing(command: str, env: dict[str, str], script: str) -> None:
    """`#SBATCH --requeue` only allows a requeue, and an option of the program is the program's own."""
    assert found(command.split(), env, script) == []


def test_the_batch_script_is_read_from_the_shell_that_runs_it(tmp_path: Path) -> None:
    """Script, launcher, supervisor: two processes up."""
    script = tmp_path / "slurm_script"
    code = "from slurm_robust.supervise.job import batch_script; print(batch_script())"
    launcher = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}]))"
    script.write_text(f'{sys.executable} -c "$CODE"\n: the end\n')
    done = subprocess.run(
        ["sh", str(script)],
        env={"CODE": launcher, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the end" in done.stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("deepspeed --hostfile=hosts train.py", "over ssh"),
        ("/opt/bin/deepspeed -H hosts train.py --deepspeed", "over ssh"),
        ("deepspeed --num_nodes 4 train.py", "over ssh"),
        ("python -m deepspeed.launcher.runner --force_multi train.py", "over ssh"),
        ("deepspeed --launcher openmpi train.py", "over ssh or mpirun"),
        ("deepspeed --launcher slurm --num_nodes 2 train.py", "calls srun itself"),
        ("deepspeed train.py", ""),
        ("deepspeed --num_nodes=1 --num_gpus 8 train.py", ""),
        ("deepspeed --no_ssh --node_rank=0 --hostfile hosts train.py", ""),
        ("python train.py --deepspeed ds_config.json --hostfile x", ""),
        ("torchrun --nnodes 4 deepspeed_train.py", ""),
    ],
)
def test_a_launcher_that_leaves_the_step_is_refused(command: str, says: str) -> None:
    """DeepSpeed's over ssh, and its srun inside of a step, with what to type; what stays on its node is let be."""
    told = leaves_the_step(command.split())
    assert (says in told) if says else not told
