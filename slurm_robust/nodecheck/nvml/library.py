"""Finds NVIDIA's binding and the library under it, and loads them only if no other user could have replaced them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from slurm_robust.nodecheck import state_folder

if TYPE_CHECKING:
    import ctypes

FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib64/nvidia", "/usr/lib/nvidia", "/run/nvidia/driver/usr/lib64")
"""The places of the library in containers and with other kinds of drivers, outside the loader's paths."""


def binding() -> Any:
    """Return the module pynvml of the package nvidia-ml-py.

    It imports `ctypes.util` for a function that it never calls, and with it subprocess, tempfile, random and more: a
    third of its time. This process has no other use for them, so it gets a stand-in meanwhile.
    """
    if "pynvml" in sys.modules or "ctypes.util" in sys.modules:
        import pynvml  # noqa: PLC0415 (only a node with GPUs pays for it)

        return pynvml
    stand_in = type(sys)("ctypes.util")
    stand_in.find_library = lambda _: None  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = stand_in
    try:
        try:
            import pynvml  # noqa: PLC0415 (the same)
        except ImportError:
            # The scripts begin without the folder of installed packages.
            from slurm_robust.nodecheck.engine.choices import need_packages  # noqa: PLC0415 (else it is not needed)

            need_packages()
            import pynvml  # noqa: PLC0415 (the same)
    finally:
        del sys.modules["ctypes.util"]
    return pynvml


def load(library: str) -> ctypes.CDLL:
    """Load the library: the site's own, else the one that the loader finds.

    Raises:
        PermissionError: users other than root and the present one may write it.
        OSError: there is no library.
    """
    import ctypes  # noqa: PLC0415 (only a node with GPUs pays for it)

    if library:
        trust(library)
        return ctypes.CDLL(library)
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        for folder in FOLDERS:
            path = f"{folder}/libnvidia-ml.so.1"
            if os.path.exists(path):  # noqa: PTH110 (no Path: time)
                trust(path)
                return ctypes.CDLL(path)
        raise OSError(*error.args) from None


def trust(library: str) -> None:
    """Refuse a library that another user could have put there: it runs with this process's rights.

    Raises:
        PermissionError: its owner or mode, or those of a folder on the way to it, let others write it.
        OSError: the library does not exist.
    """
    place = state_folder.foreign_place(library, state_folder.is_ours)
    if place:
        raise PermissionError(f"{place}: others may write it; chown root and chmod go-w it")
