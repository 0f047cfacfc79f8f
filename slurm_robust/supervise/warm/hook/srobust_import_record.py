"""Records in memory what a program imports, in order, and in which environment, for the node's agent.

It is a finder at the front of `sys.meta_path` that never finds a module. It writes lines into a memfd named
`srobust-imports`:

    m NAME ORIGIN   a module was imported from this file (tabs between the words)
    e NAME VALUE    the program has changed a variable of its environment
    u NAME          the program has removed a variable
"""

from __future__ import annotations

import fcntl
import os
import sys

MEMFD_NAME = "srobust-imports"
LINK_NAME = "/memfd:" + MEMFD_NAME
_CLOEXEC = 1
_HIGH_FDS = (900, 200, 50)
_MOST_BYTES = 2 << 20


def high_descriptor(fd: int) -> int:
    """Return a high-numbered descriptor of the file: the program's own descriptors then keep their usual numbers."""
    for least in _HIGH_FDS:
        try:
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:
            continue
        os.close(fd)
        return high
    return fd


def _raw_environment() -> dict[bytes, bytes]:
    """Return the environment as Python keeps it: comparing it costs a microsecond, at each of thousands of imports."""
    return os.environ._data  # type: ignore[attr-defined,no-any-return]


class ImportRecord:
    """A finder that never finds a module, but writes down each module that was looked for, once it is imported."""

    def __init__(self) -> None:
        self._fd = high_descriptor(os.memfd_create(MEMFD_NAME, _CLOEXEC))
        self._pid = os.getpid()
        self._pending = ""
        self._environment = dict(_raw_environment())
        self._written_bytes = 0

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note the module that was imported before this one, and what has changed since."""
        if self._fd >= 0 and os.getpid() == self._pid:
            try:
                self._note(name)
            except Exception:
                self._fd = -1  # a record that ends early is of use, too

    def _note(self, name: str) -> None:
        lines: list[tuple[str, ...]] = []
        module = sys.modules.get(self._pending)
        if module is not None:
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            lines.append(("m", self._pending, str(origin or "")))
        self._pending = name
        now, before = _raw_environment(), self._environment
        if now != before:
            changed = [(key, value) for key, value in now.items() if before.get(key) != value]
            lines += [("e", os.fsdecode(key), os.fsdecode(value)) for key, value in changed]
            lines += [("u", os.fsdecode(key)) for key in before if key not in now]
            self._environment = dict(now)
        text = "".join(
            "\t".join(line) + "\n" for line in lines if not any("\n" in word or "\t" in word for word in line)
        )
        if text and self._written_bytes < _MOST_BYTES:
            self._written_bytes += os.write(self._fd, text.encode("utf-8", "surrogateescape"))


def install() -> None:
    """Begin to record."""
    sys.meta_path.insert(0, ImportRecord())
