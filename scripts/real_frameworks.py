"""Try the integrations with the real frameworks, on one CPU: save, seal, damage a checkpoint, and resume.

    python scripts/real_frameworks.py            # all that are installed; a line for each, with its version
    python scripts/real_frameworks.py deepspeed  # one of them

The project's tests use stand-ins, because they must run without the frameworks. docs/checkpoints.md says what was tried
with which version.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from real_nemo import nemo, one_layer

from slurm_robust import checkpoint
from slurm_robust.checkpoint.integrations import (
    Sealer,
    lightning_callback,
    pin_latest,
    resume_path,
    resume_tag,
    seal_saved,
    trainer_callback,
)
from slurm_robust.checkpoint.integrations.sealing import _shared
from slurm_robust.supervise.launch import attempt_settings, other_restarters, srun_command

Step = Callable[[Path], str]


def check(*, that: bool, what: str) -> None:
    """What a trial is to show.

    Raises:
        RuntimeError: it does not.
    """
    if not that:
        raise RuntimeError(what)


def whole(path: Path, step: int) -> None:
    """It is sealed, of this step, and every byte fits."""
    report = checkpoint.verify(path, values=True)
    check(that=report.verified and report.sealed and report.step == step, what=f"not sealed as it should be: {report}")


def damage(path: Path) -> None:
    """Cut something of it off."""
    inside = [one for one in path.rglob("*") if one.is_file()] or [path]
    victim = max(inside, key=lambda one: one.stat().st_size)
    os.truncate(victim, victim.stat().st_size - 1)


def lightning(folder: Path) -> str:
    """ModelCheckpoint, every two steps; the newest is damaged; a new trainer goes on from the one before."""
    pl: Any = importlib.import_module("lightning.pytorch")

    def trainer(steps: int) -> Any:
        saving = importlib.import_module("lightning.pytorch.callbacks").ModelCheckpoint(
            folder, every_n_train_steps=2, save_top_k=-1
        )
        return pl.Trainer(
            max_steps=steps, callbacks=[saving, lightning_callback()], logger=False, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip

    data = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2)
    trainer(6).fit(one_layer(pl), data, ckpt_path=resume_path(folder))
    paths = sorted(folder.glob("*.ckpt"))
    check(that=len(paths) == 3, what=f"saved {paths}")
    for step, path in zip((2, 4, 6), paths, strict=True):
        whole(path, step)
    damage(paths[-1])
    check(that=resume_path(folder) == str(paths[1]), what=f"chose {resume_path(folder)}")
    second = trainer(8)
    second.fit(one_layer(pl), data, ckpt_path=resume_path(folder))
    check(that=second.global_step == 8, what=f"ended at {second.global_step}")
    return "ModelCheckpoint sealed, damaged, resumed from the one before"


def transformers(folder: Path) -> str:
    """Trainer with save_steps; the newest is damaged; a new trainer goes on from the one before."""
    hf: Any = importlib.import_module("transformers")

    class Model(torch.nn.Module):
        """Returns its own loss."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    def trainer(steps: int) -> Any:
        options = hf.TrainingArguments(
            output_dir=str(folder), max_steps=steps, save_steps=2, logging_steps=1, report_to=[], use_cpu=True,
            per_device_train_batch_size=2, disable_tqdm=True,
        )  # fmt: skip
        data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(64)]
        sealer = Sealer(background=False)
        return hf.Trainer(model=Model(), args=options, train_dataset=data, callbacks=[trainer_callback(sealer)])

    trainer(6).train(resume_from_checkpoint=resume_path(folder))
    for step in (2, 4, 6):
        whole(folder / f"checkpoint-{step}", step)
    check(that=(folder / "srobust-health.json").exists(), what="no record of its loss")
    damage(folder / "checkpoint-6")
    check(that=resume_path(folder) == str(folder / "checkpoint-4"), what=f"chose {resume_path(folder)}")
    second = trainer(8)
    second.train(resume_from_checkpoint=resume_path(folder))
    check(that=second.state.global_step == 8, what=f"ended at {second.state.global_step}")
    return "save_steps sealed, damaged, resumed from the one before"


def accelerate(folder: Path) -> str:
    """`save_state` is sealed, `load_state` takes what verifies."""
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in (1, 2):
        accelerator.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        seal_saved(accelerator.save_state(str(folder / f"step_{step}")))
    _shared().wait()
    for step in (1, 2):
        whole(folder / f"step_{step}", step)
    damage(folder / "step_2")
    chosen = resume_path(folder)
    check(that=chosen == str(folder / "step_1"), what=f"chose {chosen}")
    accelerator.load_state(chosen)
    return "save_state sealed, damaged, load_state of the one before"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A world of one rank, which some frameworks will not do without."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(names)
    torch.distributed.init_process_group("gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        for name in names:
            del os.environ[name]


def deepspeed(folder: Path) -> str:
    """ZeRO 1, 2 and 3: `save_checkpoint` is sealed, `load_checkpoint` takes the tag of what verifies."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    engines: Any = importlib.import_module("deepspeed")
    # It would compile a shared-memory collective for CPUs, which takes minutes and is not what is tried here.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]

    def engine(stage: int) -> Any:
        model = torch.nn.Linear(4, 1)
        options = {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        }  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters())
        return engines.initialize(model=model, optimizer=optimizer, config=options)[0]

    with alone():
        engines.init_distributed(dist_backend="gloo")
        for stage in (1, 2, 3):
            where, first = folder / str(stage), engine(stage)
            for _ in range(3):
                first.backward(first(torch.ones(2, 4, dtype=torch.bfloat16)).sum())
                first.step()
                first.save_checkpoint(str(where))
                seal_saved(f"{where}/global_step{first.global_steps}")
            _shared().wait()
            for step in (1, 2, 3):
                whole(where / f"global_step{step}", step)
            damage(where / "global_step3")
            check(that=resume_tag(where) == "global_step2", what=f"chose {resume_tag(where)}")
            second = engine(stage)
            second.load_checkpoint(str(where), tag=resume_tag(where))
            check(that=second.global_steps == 2, what=f"ZeRO {stage} resumed at {second.global_steps}")
            check(that=pin_latest(where) == str(where / "global_step2"), what="not pinned")
            second.load_checkpoint(str(where))
            check(that=second.global_steps == 2, what=f"by its tracker, ZeRO {stage} resumed at {second.global_steps}")
    return "ZeRO 1, 2, 3 sealed, damaged, resumed from the one before by tag and by the pinned tracker"


def deepspeed_launcher(folder: Path) -> str:
    """What its Slurm launcher types is a training step to our srun, with every word of it understood."""
    for name, words in {"sinfo": "exit 0", "srun": 'printf "%s\\n" "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{words}\n")
        (folder / name).chmod(0o755)
    (folder / "hosts").write_text("n1 slots=2\nn2 slots=2\n")
    (folder / "train.py").write_text("")
    command = Path(sys.executable).parent / "deepspeed"
    # Without these two it asks the first host over ssh, Slurm or not.
    options = ["--launcher=slurm", "--no_ssh_check", "--master_addr=n1", f"--hostfile={folder / 'hosts'}"]
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu"}
    argv = [str(command), *options, "train.py", "--lr", "1"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    words = done.stdout.splitlines()
    typed = srun_command.parse(words[words.index("-n") :])
    check(that=typed.values.get("n", typed.values.get("ntasks")) == "4", what=f"{typed}")
    check(that=list(typed.command[-4:]) == ["-u", "train.py", "--lr", "1"], what=f"{typed}")
    inside = other_restarters.leaves_the_step(argv)
    check(that="calls srun itself" in inside, what=f"inside of a step it is not refused: {inside!r}")
    return "its srun is understood; inside of a step it is refused"


def megatron(folder: Path) -> str:
    """`dist_checkpointing.save` of megatron-core; `seal --all`, and the tracker points at what verifies."""
    core: Any = importlib.import_module("megatron.core.dist_checkpointing")
    tracker = folder / "latest_checkpointed_iteration.txt"
    if not torch.cuda.is_available():
        # It waits for a GPU before it writes, and reduces on one after it, whether or not there is one.
        torch.cuda.synchronize = lambda *_: None
        torch.cuda.current_device = lambda: "cpu"

    def sharded(value: float) -> dict[str, Any]:
        tensor = torch.full((4, 4), value)
        return {"w": core.ShardedTensor.from_rank_offsets("w", tensor, replica_id=0), "iteration": int(value)}

    with alone():
        for step in (1, 2, 3):
            path = folder / f"iter_{step:07d}"
            path.mkdir()
            core.save(sharded(float(step)), str(path))
            tracker.write_text(str(step))
        swept = checkpoint.seal_all(folder, settled_s=0)
        check(that=len(swept.sealed) == 3, what=f"sealed {swept}")
        for step in (1, 2, 3):
            whole(folder / f"iter_{step:07d}", step)
        damage(folder / "iter_0000003")
        pin_latest(folder)
        check(that=tracker.read_text() == "2", what=f"the tracker says {tracker.read_text()}")
        loaded = core.load(sharded(0.0), str(folder / f"iter_{int(tracker.read_text()):07d}"))
    check(that=float(loaded["w"][0, 0]) == 2.0 and loaded["iteration"] == 2, what=f"loaded {loaded}")
    return "torch_dist of its core sealed by a sweep, damaged, the one before loaded by the pinned tracker"


def torchtitan(folder: Path) -> str:
    """Its CheckpointManager saves, a sweep seals, and it loads the step that srobust run would export."""
    titan: Any = importlib.import_module("torchtitan.components.checkpoint")

    def manager() -> tuple[Any, torch.nn.Module]:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        options = titan.CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0)
        made = titan.CheckpointManager(
            options, dataloader=None, model_parts=[model], optimizers=optimizer,
            lr_schedulers=torch.optim.lr_scheduler.StepLR(optimizer, 2), states={}, sd_adapter=None,
            base_folder=str(folder),
        )  # fmt: skip
        return made, model

    where = folder / "checkpoint"
    with alone():
        first, model = manager()
        for step in (1, 2, 3):
            torch.nn.init.constant_(model.weight, step)  # type: ignore[arg-type]
            first.save(step)
        check(that=len(checkpoint.seal_all(where, settled_s=0).sealed) == 3, what="not sealed")
        for step in (1, 2, 3):
            whole(where / f"step-{step}", step)
        damage(where / "step-3")
        start = attempt_settings.look_up(str(where))
        second, fresh = manager()
        second.load(step=int(attempt_settings.environment({}, "1", "1", start, folder)["SROBUST_RESUME_STEP"]))
        weight: Any = fresh.weight
        check(that=bool((weight == 2).all()), what=f"loaded {weight}")
    return "its DCP CheckpointManager: sealed by a sweep, damaged, the one before loaded by SROBUST_RESUME_STEP"


TRIALS: dict[str, tuple[str, Step]] = {
    "lightning": ("lightning", lightning),
    "transformers": ("transformers", transformers),
    "accelerate": ("accelerate", accelerate),
    "deepspeed": ("deepspeed", deepspeed),
    "deepspeed --launcher=slurm": ("deepspeed", deepspeed_launcher),
    "megatron-core": ("megatron-core", megatron),
    "torchtitan": ("torchtitan", torchtitan),
    "nemo": ("nemo_toolkit", nemo),
}


def results() -> Iterator[tuple[str, bool]]:
    """A line for each framework, and whether it went well; one that is not installed did."""
    for name, (package, trial) in TRIALS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed", True
            continue
        with tempfile.TemporaryDirectory(prefix="srobust-real-") as folder:
            try:
                yield f"{name} {version}: {trial(Path(folder))}", True
            except Exception:  # noqa: BLE001 (whatever a framework raises is the outcome)
                yield f"{name} {version}: FAILED\n{traceback.format_exc()}", False


def main() -> None:
    """Try them all; exit code 1 where one failed."""
    warnings.simplefilter("ignore")
    failed = False
    for line, good in results():
        print(line, flush=True)
        failed |= not good
    sys.exit(failed)


if __name__ == "__main__":
    main()
