"""`python -m slurm_robust.nodecheck`: `srobust check` without the cost of click."""

from __future__ import annotations

import sys

from slurm_robust.nodecheck.stages.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
