"""Real faults below a stop-time test: in its arithmetic, on the way between two of its ranks, in its share of memory.

Each is put under the Python that `srobust test --python` names, so nothing of the product or of PyTorch is replaced:

* `one_bit_python`: a preloaded library that flips one bit in the products of one node.
* `LinkProxy` with `linked_python`: a TCP proxy between the ranks of two nodes, which garbles or throttles.
* `memory_hogs`: processes that stream memory on a processor, while one node's ranks must share it (`pinned_python`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_library import compiled

_QUESTION_BYTES = 40
_GARBLED_AT = 300_000
"""Byte of each direction: within the first large message, behind everything with which gloo connects."""


def _python(folder: Path, node: str, lines: str) -> str:
    """A Python that starts with these lines of shell on `node`, on each node where it is `*`."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$SLURMD_NODENAME" in {node})\n{lines}\nesac\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def one_bit_python(folder: Path, node: str, first_call: int = 1) -> str:
    """Flips the last bit of one number of each matrix product of `node`, from this product of a process on."""
    library = compiled(folder, "one_bit")
    return _python(folder, node, f"export LD_PRELOAD={library} ONE_BIT_CALL={first_call}")


def linked_python(folder: Path, proxy: LinkProxy, *, shown: bool = False) -> str:
    """Asks the proxy before each connection; with `shown` ranks see that they are connected to it, as to a stranger."""
    names = f"LINK_PROXY={proxy.port}{' LINK_PROXY_SHOWS=1' if shown else ''}"
    return _python(folder, "*", f"export LD_PRELOAD={compiled(folder, 'redirect')} {names}")


def pinned_python(folder: Path, node: str, processor: int) -> str:
    """Runs the ranks of `node` on one processor."""
    return _python(folder, node, f'exec taskset -c {processor} {shlex.quote(sys.executable)} "$@"')


@contextmanager
def memory_hogs(processor: int, count: int) -> Iterator[None]:
    """So many processes that copy 64 MiB over and over on one processor."""
    stream = "a = bytearray(64 << 20)\nb = bytearray(64 << 20)\nwhile True: a[:] = b"
    hogs = [subprocess.Popen(["taskset", "-c", str(processor), sys.executable, "-c", stream]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


class LinkProxy:
    """Relays what ranks of two nodes send each other, and nothing else. Needs root, to see whose a port is.

    Args:
        ends: The two nodes.
        bytes_per_s: Above 0: relays so much in a second; else it flips one bit of the first large message.

    Attributes:
        relayed: Connections that went through it.
    """

    def __init__(self, ends: tuple[str, str], bytes_per_s: float = 0.0) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to see which node a rank's port belongs to")
        self.ends, self.bytes_per_s = frozenset(ends), bytes_per_s
        self.relayed = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> LinkProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            question = client.recv(_QUESTION_BYTES, socket.MSG_WAITALL)
            address = (socket.inet_ntoa(question[:4]), int.from_bytes(question[4:6], "big"))
            node = question[8:].rstrip(b"\0").decode()
            if frozenset((node, _owner(address[1]))) != self.ends:
                client.sendall(b"D")
                return
            client.sendall(b"R")
            # Whoever only asked closes now; who comes to stay sends.
            first = client.recv(1 << 16)
            if not first:
                return
            self.relayed += 1
            with socket.create_connection(address) as target:
                back = threading.Thread(target=self._relay, args=(target, client, b""), daemon=True)
                back.start()
                self._relay(client, target, first)
                back.join()

    def _relay(self, source: socket.socket, target: socket.socket, part: bytes) -> None:
        passed = 0
        try:
            while part or (part := source.recv(1 << 16)):
                at = _GARBLED_AT - passed
                if self.bytes_per_s:
                    time.sleep(len(part) / self.bytes_per_s)
                elif 0 <= at < len(part):
                    part = part[:at] + bytes([part[at] ^ 0x10]) + part[at + 1 :]
                passed += len(part)
                target.sendall(part)
                part = b""
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _owner(port: int) -> str:
    """The node whose process listens on a port; empty if none of a node does."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if inodes.intersection(os.readlink(link) for link in process.glob("fd/*")):  # noqa: PTH115 (text is compared)
                environ = (process / "environ").read_bytes().split(b"\0")
                found = [v.partition(b"=")[2].decode() for v in environ if v.startswith(b"SLURMD_NODENAME=")]
                if found:
                    return found[0]
    return ""
