"""Whether a command looks for its checkpoint at each start, as far as its words tell it, and how logs begin."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_robust.supervise.recover.attempt_start import Beginning, resumes_by_itself
from slurm_robust.supervise.recover.lineage import Lineage
from slurm_robust.supervise.watch.attempt_state import Present


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


def attempt(tmp_path: Path, lines: str, known: Lineage) -> Beginning:
    """An attempt that was given no checkpoint and has told these lines, after others of this lineage."""
    output = tmp_path / "out"
    output.touch()
    present = Present("a", ("n1",), job_id=1, layout={}, paths=[output], log_pattern="")
    output.write_text(lines)
    present.read_outputs()
    world: Any = SimpleNamespace(
        present=present, roads=SimpleNamespace(lineage=known), start=SimpleNamespace(step=-1, path=None)
    )
    return Beginning(world)


SHARDS = "".join(f"Loading checkpoint shards: | {n}/4 [\r" for n in range(5))
TRAINS = "".join(f"| {n}/1000 [\r" for n in (0, 501, 502, 503))


def test_an_attempt_that_tells_other_numbers_has_come_further(tmp_path: Path) -> None:
    """The one before died while it loaded its files: their bar was all that it had told."""
    found = attempt(tmp_path, SHARDS + TRAINS, Lineage("a", reached=4, first_step=0, counter="5/4"))
    assert (found.remembered(Lineage("a", reached=4, counter="5/4")).reached, found.unsure) == (-1, True)
    again = found.remembered(Lineage("a", reached=502, counter="5/1000"))
    assert (again.reached, again.counter) == (502, "5/1000")


def test_bars_from_before_the_training_are_no_start_from_zero(tmp_path: Path) -> None:
    """Each start loads the same files; the training's own bar decides."""
    known = Lineage("a", reached=500, first_step=0, counter="5/1000")
    assert attempt(tmp_path, SHARDS, known).unsure
    begun = attempt(tmp_path, SHARDS + TRAINS, known)
    assert (begun.first, begun.unsure) == (501, False)


@pytest.mark.parametrize(
    ("epoch", "step", "further"), [(6, 120, True), (3, 301, True), (3, 300, False), (2, 350, False)]
)
def test_attempts_whose_steps_count_anew_are_compared_by_their_epochs(
    tmp_path: Path, epoch: int, step: int, further: bool
) -> None:
    """Epoch 6, step 120 is further than epoch 3, step 300."""
    lines = f"epoch {epoch} step {step - 1}\nepoch {epoch} step {step}\n"
    known = Lineage("a", reached=300, counter="1/", falls=True, epoch=3.0)
    found = attempt(tmp_path, lines, known)
    assert (found._s.present.step > found.remembered(known).reached) is further
