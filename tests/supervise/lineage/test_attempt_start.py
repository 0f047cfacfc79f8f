"""Whether a command looks for its checkpoint at each start, as far as its words tell it, and how logs begin."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from supervised import FakeClock, World
from torchrun_attempt import attempt_of, prints

from slurm_robust.supervise.lineage.attempt_start import AttemptStart, resumes_by_itself
from slurm_robust.supervise.lineage.lineage import Lineage
from slurm_robust.supervise.lineage.lineage_store import LineageStore


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
def test_how_a_log_begins(tmp_path: Path, clock: FakeClock, lines: str, beginning: tuple[int, int] | None) -> None:
    """The first number may be none of a step that was done; the second one is judged."""
    attempt = attempt_of(tmp_path / "out", clock)
    prints(attempt, lines)
    assert attempt.first_steps == beginning


def start_of(folder: Path, lines: str, known: Lineage) -> AttemptStart:
    """An attempt that was given no checkpoint and has printed these lines, after others of this lineage."""
    world = World(folder)
    attempt = attempt_of(folder / "out", world.clock)
    prints(attempt, lines)
    store = LineageStore(world.session)
    store.lineage = known
    return AttemptStart(world.session, attempt, store)


SHARDS = "".join(f"Loading checkpoint shards: | {n}/4 [\r" for n in range(5))
TRAINS = "".join(f"| {n}/1000 [\r" for n in (0, 501, 502, 503))


def test_an_attempt_that_tells_other_numbers_has_come_further(tmp_path: Path) -> None:
    """The one before died while it loaded its files: their bar was all that it had told."""
    found = start_of(tmp_path, SHARDS + TRAINS, Lineage("a", reached=4, counter="tqdm-bar/4"))
    assert (found.remembered().reached, found.unsure) == (-1, True)
    found._store.lineage = Lineage("a", reached=502, counter="tqdm-bar/1000")
    again = found.remembered()
    assert (again.reached, again.counter) == (502, "tqdm-bar/1000")


def test_bars_from_before_the_training_are_no_start_from_zero(tmp_path: Path) -> None:
    """Each start loads the same files; the training's own bar decides."""
    known = Lineage("a", reached=500, first_step=0, counter="tqdm-bar/1000")
    assert start_of(tmp_path, SHARDS, known).unsure
    (tmp_path / "out").unlink()
    begun = start_of(tmp_path, SHARDS + TRAINS, known)
    assert (begun.first, begun.unsure) == (501, False)


@pytest.mark.parametrize(
    ("epoch", "step", "further"), [(6, 120, True), (3, 301, True), (3, 300, False), (2, 350, False)]
)
def test_attempts_whose_steps_count_anew_are_compared_by_their_epochs(
    tmp_path: Path, epoch: int, step: int, further: bool
) -> None:
    """Epoch 6, step 120 is further than epoch 3, step 300."""
    lines = f"epoch {epoch} step {step - 1}\nepoch {epoch} step {step}\n"
    known = Lineage("a", reached=300, counter="step/", falls=True, epoch=3.0)
    found = start_of(tmp_path, lines, known)
    assert (found._attempt.step > found.remembered().reached) is further
    assert (found.fruitless == 0) is further
