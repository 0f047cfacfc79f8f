"""What a training that is started next loads: prints the step, its digest, and the seconds that took, as JSON.

python -m gpu_proof.load_state FOLDER SIZE_BYTES DEVICE
"""

from __future__ import annotations

import json
import sys
import time

from ckpt import beside, ways

from gpu_proof.digest import digest
from slurm_robust.checkpoint import Checkpointer


def main(folder: str, size_bytes: str, device: str) -> None:
    """Into a training of its own, whose weights are others."""
    state = beside.training(int(size_bytes), device)
    saver = Checkpointer(folder)
    began_s = time.perf_counter()
    step = saver.load_latest(state)
    took_s = time.perf_counter() - began_s
    source = saver.resumed.source if saver.resumed is not None else ""
    saver.close()
    print(json.dumps({"step": step, "digest": digest(ways.tensors(state)), "took_s": took_s, "source": source}))


if __name__ == "__main__":
    main(*sys.argv[1:])
