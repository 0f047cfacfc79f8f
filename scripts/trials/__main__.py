"""Try slurm_robust under a user's conditions, on a Slurm that this project did not set up, and say what happened.

    SLURM_CONF=… python scripts/trials --python /opt/train/bin/python --nanogpt DIR --user alice --out DIR
    python scripts/trials … --only nanogpt/stop/run '*/kill/*'     repeat some of them
    python scripts/trials … --list                                 list their names
    python scripts/trials --out DIR --table docs/trials.md         write the results into the document

Each trial starts one training as a batch job of an ordinary user, injects one fault, and compares what happened with
what must happen (trial_rules.py). All nodes must be slurmds of this machine. Run it as root: it kills nodes and mounts
small disks. slurm_robust must be installed as docs/operations.md and docs/spank.md say. Results are added to
DIR/results.jsonl. Exit code 0: no trial was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trial_cells import Cell, chosen
from trial_run import Options, Trial
from trial_site import INTERRUPTED
from trial_table import fill_file


def main() -> int:
    """Run, list, or write the table; the exit code."""
    args = _arguments()
    try:
        cells = chosen(args.only)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 64
    if args.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    results = args.out / "results.jsonl"
    if args.table:
        fill_file(args.table, results)
        return 0
    if "SLURM_CONF" not in os.environ or os.geteuid():
        print("run it as root, with SLURM_CONF in the environment: it names the Slurm to use", file=sys.stderr)
        return 64
    args.out.mkdir(parents=True, exist_ok=True)
    options = Options(args.out.resolve(), args.python, args.nanogpt and args.nanogpt.resolve(), args.user)
    lock, wrong = threading.Lock(), []

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: INTERRUPTED.set())

    def one(cell: Cell) -> None:
        began_s = time.monotonic()
        if INTERRUPTED.is_set():
            return
        try:
            result = Trial(cell, options).run()
        except Exception:  # noqa: BLE001 (one that cannot be done says so, and the others go on)
            print(f"{cell.name}: could not be tried\n{traceback.format_exc()}", flush=True)
            wrong.append(cell)
            return
        if INTERRUPTED.is_set():
            print(f"{cell.name}: interrupted", flush=True)
            return
        with lock, results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        if result["judgement"] == "wrong":
            wrong.append(cell)
        why = f" ({result['why']})" if result["why"] else ""
        print(f"{cell.name}: {result['judgement']}{why}, {time.monotonic() - began_s:.0f} s", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, cells))
    print(f"{len(cells)} trials, {len(wrong)} wrong" if not INTERRUPTED.is_set() else "interrupted")
    return 1 if wrong or INTERRUPTED.is_set() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/trials", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results, with a folder for each trial")
    parser.add_argument("--python", default=sys.executable, help="the training's Python, with torch and the frameworks")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--user", default="nobody", help="the user who submits the jobs")
    parser.add_argument("--only", nargs="*", default=[], help="only these trials: PROGRAM/FAULT/WAY, * for any")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--list", action="store_true", help="list the names of all trials")
    parser.add_argument("--table", type=Path, help="write the results into this document, run no trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
