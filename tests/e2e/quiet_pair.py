"""Two ranks that give each other a byte in each step; one that has lost the other ends with exit code 1.

Rank 0 prints the steps. `quiet_pair.py FOLDER STEPS [WORDS]` saves its step there. With WORDS, the end is a TypeError.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path


def connection() -> socket.socket:
    """To the other rank."""
    port = int(os.environ["MASTER_PORT"])
    if os.environ["SLURM_PROCID"] == "0":
        with socket.create_server(("127.0.0.1", port)) as server:
            return server.accept()[0]
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.1)


def main() -> None:
    """Train."""
    saved, steps = Path(sys.argv[1]) / "saved", int(sys.argv[2])
    first = int(saved.read_text()) + 1 if saved.exists() else 1
    peer = connection()
    for step in range(first, steps + 1):
        time.sleep(0.1)
        alone = True
        with contextlib.suppress(OSError):
            peer.sendall(b".")
            alone = not peer.recv(1)
        if alone:
            if sys.argv[3:]:
                raise TypeError(sys.argv[3])
            os._exit(1)
        if os.environ["SLURM_PROCID"] == "0":
            saved.write_text(str(step))
            print(f"step {step}/{steps} loss {1 / step:.4f}", flush=True)


if __name__ == "__main__":
    main()
