"""The driver of `quickstart.sh`, which explains it. Here: the options, and Ctrl-C before anything was started."""

from __future__ import annotations

import os
import signal
import sys

# Loading what follows takes a moment, in which there is nothing to clean up yet.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse  # noqa: E402 (the signal comes first, on purpose)
from pathlib import Path  # noqa: E402 (the same)

from quickstart_run import run  # noqa: E402 (the same)


def arguments() -> argparse.Namespace:
    """As `quickstart.sh --help` explains them."""
    parser = argparse.ArgumentParser(prog="quickstart.sh")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--steps", type=int, default=60, help="steps of the training, 24 or more")
    parser.add_argument("--report-dir", type=Path, help="folder for the report")
    args = parser.parse_args()
    if args.steps < 24:
        parser.error("--steps: an attempt's own pace is known after some steps; take 24 or more")
    return args


if __name__ == "__main__":
    sys.exit(run(arguments()))
