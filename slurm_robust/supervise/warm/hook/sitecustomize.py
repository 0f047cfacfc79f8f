"""Runs in each rank of `srobust run --robust-warm`, before the program's first line: records, or waits.

`SROBUST_WARM=record` in the environment records what the program imports; `wait` imports the recorded modules and waits
for the release of the next attempt; `probe` shows that this Python loads this file. Afterwards environment and
`sys.path` are as if this file did not exist, and the user's own sitecustomize runs as it would without us.

If anything fails here, a program that only records starts all the same.
"""

from __future__ import annotations

import os
import sys

PROBED = 86
"""Exit code of a probe."""


def _withdraw() -> list[str]:
    """Remove this folder from the module search path of Python and its children; return the entries behind it."""
    here = os.path.dirname(os.path.abspath(__file__))
    ours = [number for number, entry in enumerate(sys.path) if os.path.abspath(entry or ".") == here]
    behind = sys.path[ours[0] + 1 :] if ours else list(sys.path)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path_importer_cache.pop(here, None)
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [folder for folder in folders if os.path.abspath(folder or ".") != here]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
    return behind


def _load_the_other(behind: list[str]) -> None:
    """Run the sitecustomize that Python would have found without us; raise if there is no other one."""
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("sitecustomize", behind)
    if found is None or found.loader is None:
        raise ImportError("there is no other sitecustomize", name="sitecustomize")
    from importlib.util import module_from_spec

    module = module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


def _record(role: str) -> None:
    """Begin to record; if that fails, a warm process ends, since it must not run the program on its own."""
    try:
        import srobust_import_record as record  # type: ignore[import-not-found]

        record.install()
        if role == "wait":
            import srobust_warm_gate  # type: ignore[import-not-found]  # noqa: F401
    except Exception:
        if role == "wait":
            os._exit(1)
    sys.modules.pop("srobust_import_record", None)


_role = os.environ.pop("SROBUST_WARM", "")
if _role == "probe":
    os._exit(PROBED)
if _role in ("record", "wait"):
    _record(_role)
_behind = _withdraw()
try:
    _load_the_other(_behind)
finally:
    if _role == "wait":
        sys.modules.pop("srobust_warm_gate").wait()
