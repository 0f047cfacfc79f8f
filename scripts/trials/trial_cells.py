"""What is tried: programs, faults and ways to start a job, and the batch script of each. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple

STEPS = 50
STEP_S = 0.15
SAVE_EVERY = 10
CPUS = 8
"""All of a node's CPUs, so that no two jobs share a node. `--exclusive` would take the GPUs too. Slurm 22.05 can lose
track of GPUs when a node dies under a job that is then requeued, and later trials would wait for ever."""
FAULT_STEP = 24
"""The fault comes at this step: two checkpoints exist, and every rank has made the five steps that a limit needs."""
FAULT_RANK = 1
"""Not rank 0: if it is silent, so is the job's output."""

WAYS = {"run": "`srobust run`", "spank": "`sbatch --robust`"}


class Fault(NamedTuple):
    """One way to break a training.

    Attributes:
        what: Its name in the table.
        by_program: The wrapper raises it inside the program; otherwise it comes from outside.
    """

    what: str
    by_program: bool = False


FAULTS = {
    "clean": Fault("none"),
    "stop": Fault("SIGSTOP of a rank"),
    "kill": Fault("kill -9 of a rank"),
    "error": Fault("the program's own error", by_program=True),
    "cuda": Fault("a CUDA error on one node", by_program=True),
    "loader": Fault("a hanging loader"),
    "disk": Fault("a full checkpoint disk"),
    "node": Fault("a dead node"),
}


class Program(NamedTuple):
    """One training program.

    Attributes:
        what: In the words of the table.
        shows: How it shows its progress.
        nodes: How many it trains on, with one rank each.
        start: What srun starts, with `{python}`, `{programs}` and `{folder}` to be filled in.
        before: Lines of the batch script before that.
        finds_checkpoint: srobust gets the folder of the checkpoints.
        hang_timeout_s: `--robust-hang-timeout`, 0 for none. The stack of a hang in the program's own lines looks like
            that of a long computation, so the limit that its user knows decides.
        raises_on_all: Its own error comes on all ranks; on one alone otherwise.
        disk_mb: The checkpoint folder's size while a full disk is tried.
        disk_step: The disk fills at this step. Before the first save, where each one writes over the one before: it
            would find its own room again.
    """

    what: str
    shows: str
    nodes: int
    start: str
    before: str = ""
    finds_checkpoint: bool = True
    raises_on_all: bool = False
    hang_timeout_s: int = 0
    disk_mb: int = 8
    disk_step: int = FAULT_STEP


_MASTER = """export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 5000))"""
_WRAPPED = "{python} -u {programs}/with_fault.py {programs}/"
_RANK = "RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=$SLURM_NTASKS"


def _ranks(program: str) -> str:
    """As torch's `env://` wants it from plain srun."""
    return f"bash -c '{_RANK} exec {_WRAPPED}{program}'"


PROGRAMS = {
    "nanogpt": Program(
        "nanoGPT under torchrun",
        "`iter N: loss …`",
        3,
        "{python} -m torch.distributed.run --nnodes=3 --nproc_per_node=1 --rdzv_id=$RANDOM --rdzv_backend=c10d "
        "--rdzv_endpoint=$head:$((25000 + SLURM_JOB_ID % 5000)) {programs}/with_fault.py train.py $RESUME "
        "--out_dir={folder}/ckpt --dataset=words --device=cpu --backend=gloo --dtype=float32 --compile=False "
        "--n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=2 --gradient_accumulation_steps=3 "
        f"--eval_interval={SAVE_EVERY} --eval_iters=1 --max_iters={STEPS}",
        before='cd {folder}/nanogpt\nhead=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        "RESUME=\n[ -f {folder}/ckpt/ckpt.pt ] && RESUME=--init_from=resume",
        finds_checkpoint=False,
        hang_timeout_s=60,  # it reads its data itself, without a loader
        disk_step=SAVE_EVERY // 2,
    ),
    "hf": Program(
        "Hugging Face Trainer", "a tqdm bar, `{'loss': …}`", 3, _ranks("hf_trainer.py {folder}/ckpt"), _MASTER,
    ),
    "lightning": Program(
        "Lightning", "its progress bar", 3, f"{_WRAPPED}lightning_fit.py {{folder}}/ckpt",
        raises_on_all=True,
    ),
    "ddp": Program(
        "plain torch DDP", "`step N loss x`", 4, _ranks("plain_ddp.py {folder}/ckpt"), _MASTER,
        raises_on_all=True,
    ),
    "calls": Program(
        "torch with slurm_robust's calls", "`progress.step`", 3, _ranks("calls_us.py {folder}/ckpt"), _MASTER
    ),
}  # fmt: skip


class Cell(NamedTuple):
    """One trial."""

    program: str
    fault: str
    way: str

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return "/".join(self)


def all_cells() -> list[Cell]:
    """Every program with every fault in every way; runs without a fault come first."""
    return [Cell(program, fault, way) for way in WAYS for fault in FAULTS for program in PROGRAMS]


def chosen(only: list[str]) -> list[Cell]:
    """The cells that these patterns name; `*` matches any word: `nanogpt/stop/run`, `*/kill/*`, `hf`.

    Raises:
        ValueError: a word names no cell.
    """
    if not only:
        return all_cells()
    found = []
    for word in only:
        parts = (*word.split("/"), "*", "*")[:3]
        cells = [c for c in all_cells() if all(want in ("*", have) for want, have in zip(parts, c, strict=True))]
        if not cells:
            raise ValueError(
                f"--only {word} names no trial; it is PROGRAM/FAULT/WAY with programs {', '.join(PROGRAMS)}, faults "
                f"{', '.join(FAULTS)}, ways {', '.join(WAYS)}, or * for any"
            )
        found += [cell for cell in cells if cell not in found]
    return found


def sbatch_words(cell: Cell, folder: str) -> list[str]:
    """The command line before the script's name."""
    words = [
        "sbatch",
        "--parsable",
        "--requeue",
        "--open-mode=append",
        f"--output={folder}/job.out",
        f"--chdir={folder}",
    ]
    words += [f"--nodes={PROGRAMS[cell.program].nodes}", "--ntasks-per-node=1", f"--cpus-per-task={CPUS}", "--time=30"]
    words.append(f"--job-name={cell.name.replace('/', '-')}")
    return words + (["--robust", *_options(cell, folder)] if cell.way == "spank" else [])


def _options(cell: Cell, folder: str) -> list[str]:
    program = PROGRAMS[cell.program]
    checkpoints = [f"--robust-checkpoint-dir={folder}/ckpt"] if program.finds_checkpoint else []
    return checkpoints + ([f"--robust-hang-timeout={program.hang_timeout_s}"] if program.hang_timeout_s else [])


def batch_script(cell: Cell, folder: str, python: str, programs: str, fault: str) -> str:
    """The job's script.

    Args:
        cell: The trial.
        folder: The trial's own folder.
        python: The training's interpreter.
        programs: Where the programs lie.
        fault: For `with_fault.py`, in its own words.
    """
    program = PROGRAMS[cell.program]
    launcher = " ".join(["srobust run", *_options(cell, folder)]) if cell.way == "run" else "srun"
    lines = f"""#!/bin/bash
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
export TRIAL_FOLDER={folder} TRIAL_STEP_S={STEP_S} TRIAL_FAULT={shlex.quote(fault)}
{program.before}
{launcher} {program.start}
"""
    for name, value in {"folder": folder, "python": python, "programs": programs}.items():
        lines = lines.replace(f"{{{name}}}", value)
    return lines
