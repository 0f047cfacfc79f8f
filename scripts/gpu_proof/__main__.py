"""Proves on a machine with NVIDIA GPUs what elsewhere only stand-ins were asked.

    scripts/gpu-proof [--wheels DIR] [--minutes 9] [--part checks …] [--out DIR] [--rehearse]

Each part runs in a process of its own for its share of the time, and what it found is written down step by step. The
pages `proof.json` and `proof.md` are there after the first part and grow with each. The exit code is 0 if all that
was tried held, 1 where something failed, 3 where no step could be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_proof import budget, machine, outcome, page, part_process
from gpu_proof.outcome import PartOutcome, Status
from gpu_proof.place import SEARCH

LOG_TAIL_CHARS = 6000
OUTPUT = "output.txt"
"""What a part prints; it is in each part's folder from the beginning."""
GRACE_S = 5.0
"""A part sees its deadline itself, first."""
PART_PROCESS = [sys.executable, "-m", "gpu_proof.part_process"]


def play(part: str, folder: Path, limit_s: float, *, rehearsal: bool) -> PartOutcome:
    """Run one part in a process group of its own, and end it at its limit."""
    if (folder / OUTPUT).exists():
        shutil.rmtree(folder)  # of an earlier run
    folder.mkdir(parents=True, exist_ok=True)
    words = [*PART_PROCESS, part, str(folder), f"{limit_s:.0f}"]
    began_s = time.monotonic()
    with (folder / OUTPUT).open("wb") as log:
        process = subprocess.Popen(
            [*words, *(["rehearse"] if rehearsal else [])],
            env={**os.environ, "PYTHONPATH": SEARCH},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s + GRACE_S)
            ended = f"ended with exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended = f"out of time ({limit_s:.0f} s)"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    tail = (folder / OUTPUT).read_text(errors="replace")[-LOG_TAIL_CHARS:]
    steps = outcome.read(folder / part_process.STEPS)
    return PartOutcome(part, steps, ended, time.monotonic() - began_s, tail)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What can be set on the command line."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser("scripts/gpu-proof", description=about[0], epilog=about[-1])
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together (default: %(default)g)")
    parser.add_argument("--part", nargs="+", choices=budget.PARTS, default=list(budget.PARTS), help="only these")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT", "gpu-proof")),
        help="folder (default: $OUT, or gpu-proof)",
    )
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: a fake NVML, and tensors on the CPU")
    parser.add_argument("--wheels", metavar="DIR", help="before all others: the folder that packages come from")
    args = parser.parse_args(argv)
    if args.wheels:
        parser.error("--wheels DIR must come before all other words: it is needed before this program can start")
    args.out = args.out.absolute()  # settings and prolog have other working folders
    args.part = [part for part in budget.PARTS if part in args.part]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, and write the pages after each."""
    args = arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    about = machine.describe()
    ends_s = time.monotonic() + 60 * args.minutes
    outcomes: list[PartOutcome] = []
    for number, part in enumerate(args.part):
        limit_s = budget.limit_s(ends_s - time.monotonic(), part, args.part[number + 1 :])
        print(f"gpu-proof: {part}, {limit_s:.0f} s at most", file=sys.stderr, flush=True)
        outcomes.append(play(part, args.out / part, limit_s, rehearsal=args.rehearse))
        (args.out / "proof.json").write_text(page.to_json(about, outcomes, args.rehearse))
        (args.out / "proof.md").write_text(page.to_markdown(about, outcomes, args.rehearse))
    print((args.out / "proof.md").read_text())
    if any(found.failed for found in outcomes):
        return 1
    tried = [step for found in outcomes for step in found.steps if step.status is not Status.NOT_RUN]
    return 0 if tried else 3


if __name__ == "__main__":
    sys.exit(main())
