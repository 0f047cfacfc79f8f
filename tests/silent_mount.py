"""A file system of FUSE that stops answering on one node of a devcluster, while it answers on the others.

All nodes are this machine, and so they share the mount. Its server tells them apart by who asks: the environment of
each process names its node and its cluster. In it are the files `0` to `99`. Let each node read one of its own: whoever
reads the same one waits for the same page of this machine's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 4096
_ROOT = 1
_FILES = {str(number).encode(): number + 2 for number in range(100)}
"""Name → number of the inode."""
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
_OPENDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 27, 29, 36, 42
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_HEADER = struct.Struct("<IIQQIIII")
_MOST_BYTES = 1 << 17
_DETACH = 2


def _attributes(inode: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if inode == _ROOT else stat.S_IFREG | 0o444
    return struct.pack("<6Q10I", inode, SIZE, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, SIZE, 0)


def _reply(operation: int, inode: int, body: bytes) -> bytes | int:
    """What is answered to a request: bytes, or the number of an error."""
    if operation == _INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, _MOST_BYTES, 1, 12, 9, SIZE, 1, 1, *[0] * 9)
    if operation == _LOOKUP:
        found = _FILES.get(body.rstrip(b"\0"), 0)
        return struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + _attributes(found) if found else errno.ENOENT
    replies = {
        _GETATTR: struct.pack("<Q2I", 0, 0, 0) + _attributes(inode),
        _OPEN: struct.pack("<Q2I", 0, 0, 0),
        _OPENDIR: struct.pack("<Q2I", 0, 0, 0),
        _READ: bytes(SIZE),
        _STATFS: struct.pack("<5Q10I", 1, 0, 0, 1, 0, SIZE, 255, SIZE, *[0] * 7),
        **dict.fromkeys((_RELEASE, _RELEASEDIR, _FLUSH), b""),
    }
    return replies.get(operation, errno.ENOSYS)


def _asks_from(pid: int, marks: set[bytes]) -> bool:
    """Whether a process has all of these variables."""
    try:
        return marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


def serve(folder: Path, silent: Path, marks: set[bytes]) -> None:
    """Mount and answer, but for reads and questions after its state by marked processes while the file `silent` exists.

    What was not answered is answered once that file is gone.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    held: list[tuple[int, int, int, bytes]] = []

    def answer(unique: int, operation: int, inode: int, body: bytes) -> None:
        reply = _reply(operation, inode, body)
        words = reply if isinstance(reply, bytes) else b""
        error = 0 if isinstance(reply, bytes) else -reply
        # Who asked may have been killed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.write(device, struct.pack("<IiQ", 16 + len(words), error, unique) + words)

    while True:
        if held and not silent.exists():
            for request in held:
                answer(*request)
            held.clear()
        if not select.select([device], [], [], 0.1)[0]:
            continue
        try:
            asked = os.read(device, 2 * _MOST_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:  # it was unmounted
                return
            continue
        _, operation, unique, inode, _, _, pid, _ = _HEADER.unpack_from(asked)
        request = (unique, operation, inode, asked[_HEADER.size :])
        if operation in (_READ, _STATFS) and silent.exists() and _asks_from(pid, marks):
            held.append(request)
        elif operation not in _UNANSWERED:
            answer(*request)


@contextlib.contextmanager
def silent_mount(folder: Path, silent: Path, slurm_conf: Path, node: str) -> Iterator[Path]:
    """Mount it here; it does not answer on this node of this cluster while the file `silent` exists.

    The test is skipped where nothing can be mounted by FUSE.
    """
    folder.mkdir()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse, to mount a file system that stops answering")
    words = [sys.executable, __file__, str(folder), str(silent), f"SLURM_CONF={slurm_conf}", f"SLURMD_NODENAME={node}"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stderr is not None
    with server, server.stdout, server.stderr:
        try:
            if server.stdout.readline().strip() != "mounted":
                pytest.skip(f"nothing can be mounted by FUSE: {server.stderr.read().strip()}")
            yield folder
        finally:
            # Whoever still waits for an answer gets an error as soon as there is no server.
            server.kill()
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), {os.fsencode(word) for word in sys.argv[3:]})
