"""Kill with -9 at every stage of a save, many times: is the checkpoint that is chosen afterwards always whole?

    python scripts/kill_saves.py --rounds 400 --seed 1

Each round trains one to four ranks (real processes, gloo) on one to three simulated nodes, each with its own persister,
and saves six steps. A rank, a persister, a node's agent, or all processes of a node are killed at a stage that the seed
chooses: of the copy, of the writing, or of a backup's transfer to another node. The round then checks which checkpoint
`latest` chooses, starts the training again, compares every loaded byte with what was saved as that step, and saves one
step more. It also checks the number of the step. A step that was copied on all ranks is never lost with a rank. The
death of an agent or a persister costs nothing as long as its ranks live. The loss of a node costs nothing that all
ranks had kept elsewhere. Exit code 0: all rounds were right.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kill_point
import torch
from kill_backups import BackupRound
from kill_cases import STEPS, TRAINER, TRANSFER, WRITER, cases
from kill_round import Round
from kill_training import DEVICE, go_on, train

from slurm_robust import checkpoint

SIDES = {"save": (TRAINER, WRITER), "transfer": (TRANSFER,), "all": (TRAINER, WRITER, TRANSFER)}
_PR_SET_CHILD_SUBREAPER = 36


class SaveRound(Round):
    """Somebody is killed while a save is copied or written."""

    def story(self) -> str:
        """Train, kill, look what is chosen, go on."""
        case = self.case
        if case.keeper == "agent":
            for node in self.nodes:
                self.agent(node)
        why = self._first()
        in_memory = case.keeper == "agent" and case.victim == "rank"
        if not why and not in_memory:
            why = self.over()
        low, high = self._allowed()
        if not why and not in_memory:
            found = checkpoint.latest(self.folder / "ckpt", deep=True)
            why = self._chosen(found, low, high)
            # A save whose shares are all there is gone on from under no seal, too.
            low = max(found.step, 0)
            self.case = case._replace(keeper="none" if case.keeper == "none" else "own")
        return why or self._second(low, high)

    def _first(self) -> str:
        """Train until somebody is killed."""
        codes = self.ranks(train, self.nodes)
        if not kill_point.struck(self.folder):
            return f"nobody was killed: {codes}: {self.said()}"
        if self.case.victim in ("persister", "agent") and any(codes):
            return f"ranks ended with {codes}: {self.said()}"
        return ""

    def _chosen(self, found: checkpoint.Found, low: int, high: int) -> str:
        if not low <= max(found.step, 0) <= high:
            return f"step {found.step} is chosen, not one of {low} to {high}: {self.said()}"
        if found.path is None or (report := checkpoint.verify(found.path)).verified:
            return ""
        return f"{found.path} does not verify: {report.problems}"

    def _second(self, low: int, high: int) -> str:
        """Start it anew."""
        self.nobody_dies()
        codes = self.ranks(go_on, self.nodes)
        if any(codes):
            return f"the next training ended with {codes}: {self.said()}"
        loaded = [json.loads(path.read_text())[:3] for path in sorted(self.folder.glob("loaded-*"))]
        if any((step, same) != (loaded[0][0], True) or not low <= step <= high for step, _, same in loaded):
            return f"loaded were (step, source, bit for bit): {loaded}, allowed is {low} to {high}"
        self.source = loaded[0][1]
        step, found = loaded[0][0] + 1, checkpoint.latest(self.folder / "ckpt", deep=True)
        return "" if found.step == step else f"step {found.step} is there in the end, {step} was sealed"

    def _allowed(self) -> tuple[int, int]:
        """The oldest and the newest step that may be chosen."""
        case = self.case
        sealed = max(self.noted(f"sealed-{rank}") for rank in range(case.ranks))
        if case.victim in ("persister", "agent"):
            return STEPS, STEPS
        if case.keeper == "none":
            return sealed, sealed + 1
        copied = min(self.noted(f"copied-{rank}") for rank in range(case.ranks))
        return (copied, copied) if case.victim == "rank" else (sealed, copied)


def main() -> int:
    """Run all rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stages", choices=SIDES, default="all")
    parser.add_argument("--device", default="cpu", help="where the state lies, cuda for a GPU (default: %(default)s)")
    parser.add_argument(
        "--only", type=int, nargs="*", help="run only the rounds with these numbers, as an earlier run printed them"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ[DEVICE] = args.device
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began_s, wrong = time.monotonic(), 0
    told: collections.Counter[str] = collections.Counter()
    sources: collections.Counter[str] = collections.Counter()
    say = _progress(args.rounds)
    for number, case in enumerate(cases(args.seed, args.rounds, SIDES[args.stages])):
        if args.only and number not in args.only:
            continue
        say(number, wrong)
        folder = Path(tempfile.mkdtemp(prefix="kill-saves-"))
        one = (BackupRound if case.side == TRANSFER else SaveRound)(case, folder, number)
        why = one.wrong()
        told[f"{case.victim} at {case.side}"] += 1
        if why:
            wrong += 1
            print(f"round {number}, {case}, {folder}: {why}", flush=True)
        else:
            sources[one.source or "nothing"] += 1
            shutil.rmtree(folder)
    say(args.rounds, wrong)
    kills = ", ".join(f"{count} of {victim}" for victim, count in sorted(told.items()))
    print(f"{told.total()} kills ({kills}), seed {args.seed}: {wrong} wrong, {time.monotonic() - began_s:.0f} s")
    print(f"gone on from: {', '.join(f'{source} {count}' for source, count in sorted(sources.items()))}")
    return 1 if wrong else 0


def _progress(rounds: int) -> Callable[[int, int], None]:
    """Shows the progress in one line on stderr, if that is a terminal."""
    began_s, shown = time.monotonic(), sys.stderr.isatty()

    def say(done: int, wrong: int) -> None:
        if shown:
            end = "\n" if done == rounds else ""
            passed_s = time.monotonic() - began_s
            print(f"\r{done} of {rounds} kills, {wrong} wrong, {passed_s:.0f} s", end=end, file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
