"""The program that `quickstart.sh` starts: options, and Ctrl-C before anything was started."""

from __future__ import annotations

import os
import signal
import sys

# The imports below take a moment, in which there is nothing to clean up yet.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse  # noqa: E402 (the signal handler comes first, on purpose)
from pathlib import Path  # noqa: E402 (the same)

from quickstart_run import run  # noqa: E402 (the same)
from quickstart_story import ACTS  # noqa: E402 (the same)


def arguments() -> argparse.Namespace:
    """The options that `quickstart.sh --help` explains."""
    parser = argparse.ArgumentParser(prog="quickstart.sh")
    parser.add_argument("--act", choices=ACTS, default="hang", help="what goes wrong")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--steps", type=int, default=60, help="steps of the training, 24 or more")
    parser.add_argument("--report-dir", type=Path, help="folder for the report")
    args = parser.parse_args()
    if args.steps < 24:
        parser.error("--steps: give 24 or more; an attempt's own pace is known only after some steps")
    return args


if __name__ == "__main__":
    sys.exit(run(arguments()))
