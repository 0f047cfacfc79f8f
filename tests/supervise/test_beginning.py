"""Whether a command looks for its checkpoint at each start, as far as its words tell it, and how logs begin."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from slurm_robust.supervise.beginning import resumes_by_itself
from slurm_robust.supervise.present import Present


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --init_from=resume",
        "torchrun train.py --resume_from_checkpoint last",
        "python main.py --auto-resume",
        "python pretrain_gpt.py --save ck --load ck",
        "python train.py trainer.ckpt_path=last",
        "bash -c '[ -f ckpt.pt ] && A=--from=ckpt; exec python train.py $A'",
        "bash -c 'python train.py --start $SROBUST_RESUME_PATH'",
    ],
)
def test_words_of_a_command_that_resumes(command: str) -> None:
    """Options of known programs, and a shell that looks by itself."""
    assert resumes_by_itself(shlex.split(command))


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python train.py --init_from=scratch",
        "python train.py --no-resume",
        "python train.py --resume=false --wandb_resume=allow",
        "python train.py --wandb.resume allow --payload x --download",
        "bash train.sh",
    ],
)
def test_words_that_say_nothing_of_it(command: str) -> None:
    """Then nobody knows."""
    assert not resumes_by_itself(shlex.split(command))


@pytest.mark.parametrize(
    ("lines", "beginning"),
    [
        ("iter 0: loss 3\niter 1: loss 3\niter 2: loss 3\n", (0, 1)),
        ("iter 0: loss 3\n", None),  # one line is not enough to tell
        ("|  | 0/1000 [00:00<?]\r| | 501/1000 [00:01<?]\r", (0, 501)),  # a bar that jumps to where training goes on
        ("Epoch 3: | 0/391 [\rEpoch 3: | 1/391 [\r", None),  # counted anew in each epoch
        ("step 100\nstep 200\nstep 10\nstep 20\n", None),  # and here, without a word
        ("step 10\nstep 11\nstep 10\nstep 12\n", (10, 11)),  # two ranks, one a step behind
    ],
)
def test_how_a_log_begins(tmp_path: Path, lines: str, beginning: tuple[int, int] | None) -> None:
    """The first number may be none of a step that was done; the second one is judged."""
    output = tmp_path / "out"
    output.touch()
    present = Present("a", ("n1",), job_id=1, layout={}, paths=[output], log_pattern="")
    output.write_text(lines)
    present.read_outputs()
    assert present.beginning == beginning
