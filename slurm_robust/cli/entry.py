"""The console script `srobust`. A training step is started without click; everything else is `main`'s."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of `srobust`."""
    words = sys.argv[1:]
    if words[:1] == ["run"] and words[1:2] not in (["--help"], ["-h"]) and "_SROBUST_COMPLETE" not in os.environ:
        from slurm_robust.cli.run_step import run  # noqa: PLC0415 (each start loads what it needs)

        code = run(words[1:])
        # The script's next line waits for us: what an interpreter tidies up at its end is gone with the process anyway.
        os._exit(code)
    from slurm_robust.cli import main as commands  # noqa: PLC0415 (the same)

    commands.main()
