"""A network that breaks below PyTorch: a small library that is preloaded into the ranks of a job and of its tests."""

from __future__ import annotations

from pathlib import Path

from fault_library import compiled


class BrokenNetwork:
    """Breaks what some nodes send each other.

    Args:
        folder: A folder of its own, which all nodes see.
        faults: Who → what: `{"n2,n3": "corrupt"}` for a link, `{"n4": "drop"}` for a node; see the library.
    """

    def __init__(self, folder: Path, faults: dict[str, str]) -> None:
        folder.mkdir()
        self.begin_file = folder / "begin"
        self.variables = {
            "LD_PRELOAD": str(compiled(folder, "broken_network")),
            "BROKEN_NETWORK": ";".join(f"{who}:{fault}" for who, fault in faults.items()),
            "BROKEN_NETWORK_DIR": str(folder),
        }

    def begin(self) -> None:
        """From now on it is broken; a program may also create `begin_file` itself."""
        self.begin_file.touch()
