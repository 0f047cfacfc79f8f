"""The process of one part: its steps go to a file, each before the next one begins.

python -m gpu_proof.part_process PART FOLDER LIMIT_S [rehearse]
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpu_proof import outcome
from gpu_proof.place import Place

STEPS = "steps.jsonl"


def main(argv: list[str]) -> None:
    """Run the part's steps one after another."""
    part, folder, limit_s, *more = argv
    place = Place(Path(folder), time.monotonic() + float(limit_s), more == ["rehearse"])
    began_s = time.monotonic()
    for step in importlib.import_module(f"gpu_proof.parts.{part}").steps(place):
        now_s = time.monotonic()
        outcome.write(place.folder / STEPS, replace(step, took_s=round(now_s - began_s, 2)))
        print(f"{part}: {step.name}: {step.status.value}: {step.sentence}", file=sys.stderr, flush=True)
        began_s = now_s


if __name__ == "__main__":
    main(sys.argv[1:])
