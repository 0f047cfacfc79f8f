"""Starts the console script `srobust`: a training step without loading click, everything else by `main`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("yaml", "click")
"""Two modules that the commands need: `pip install --no-deps`, enough for the calls of a training, leaves both out."""


def main() -> None:
    """Entry point of `srobust`."""
    words = sys.argv[1:]
    lacking = [name for name in NEEDED if find_spec(name) is None]
    if lacking and (other := whole_one(sys.argv[0], os.environ.get("PATH", ""))):
        os.execv(other, [other, *words])  # noqa: S606 (the same command of the site's)
    if words[:1] == ["run"] and words[1:2] not in (["--help"], ["-h"]) and "_SROBUST_COMPLETE" not in os.environ:
        from slurm_robust.cli.run_step import run  # noqa: PLC0415 (each start loads what it needs)

        code = run(words[1:])
        # The script's next line waits for us: what an interpreter tidies up at its end is gone with the process anyway.
        os._exit(code)
    if lacking:
        sys.exit(
            f"srobust: this Python environment ({sys.prefix}) lacks {', '.join(lacking)}, as after pip install "
            "--no-deps. Type the site's srobust (/opt/slurm_robust/bin/srobust), or install the whole: pip install ."
        )
    from slurm_robust.cli import main as commands  # noqa: PLC0415 (the same)

    commands.main()


def whole_one(own: str, path: str) -> str:
    """Return the next `srobust` on this PATH, behind the folder of our `own`; empty if there is none.

    The search begins behind our folder (anywhere if that is not on the PATH), so that two incomplete installations
    never call each other.
    """
    folders, here = [Path(name) for name in path.split(os.pathsep) if name], Path(own).resolve().parent
    places = [at for at, folder in enumerate(folders) if folder.resolve() == here]
    for folder in folders[places[-1] + 1 if places else 0 :]:
        found = folder / "srobust"
        if os.access(found, os.X_OK) and found.resolve().parent != here:
            return str(found)
    return ""
