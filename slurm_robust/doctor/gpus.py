"""Can what is installed here see this node's GPUs, and test them? Judged by the traces that the driver leaves."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_robust.config.site import NodetestConfig
from slurm_robust.doctor.advice import Advice, Severity
from slurm_robust.doctor.machine import PYTHON, settings_of

ABOUT = "nvidia-ml-py"
_LOADED = ("/proc/driver/nvidia", "/dev/nvidia0")
_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib64/nvidia"),
    *("/usr/lib/nvidia", "/usr/local/nvidia/lib64", "/run/nvidia/driver/usr/lib64"),
)
_VENDOR, _DISPLAY = "0x10de", "0x03"

Has = Callable[[str, str], "bool | None"]
"""Whether a Python (by its path) has a module; None if that cannot be told from here."""


def check(nodetest: NodetestConfig, root: Path = Path("/"), has: Has | None = None) -> list[Advice]:
    """Return findings about this node's GPUs; none on a machine without any sign of one.

    `root` is the folder that stands for `/`; `has` replaces the look into a Python's packages.
    """
    found = signs(root)
    if not found:
        return []
    has = has or (lambda python, module: has_module(root, python, module))
    return [*_binding(found, root, has), *_torch(nodetest, has)]


def signs(root: Path) -> list[str]:
    """Return what on this machine says that it has an NVIDIA GPU or its driver, the surest first."""
    found = [path for path in _LOADED if (root / path.lstrip("/")).exists()]
    found += [f"PCI device {name}" for name in _devices(root)[:1]]
    library = (f"{folder}/{_LIBRARY}" for folder in _FOLDERS)
    return found + [path for path in library if (root / path.lstrip("/")).exists()][:1]


def _devices(root: Path) -> list[str]:
    devices = root / "sys/bus/pci/devices"
    return sorted(path.parent.name for path in devices.glob("*/vendor") if _is_gpu(path.parent))


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = ((device / name).read_text("ascii", "replace").strip().lower() for name in ("vendor", "class"))
    except OSError:
        return False
    return vendor == _VENDOR and kind.startswith(_DISPLAY)


def _binding(found: list[str], root: Path, has: Has) -> list[Advice]:
    """Check whether each Python that runs checks has NVIDIA's binding: prolog and srobust may use different ones."""
    pythons = [sys.executable]
    scripts = settings_of(root).get("SROBUST_PYTHON", PYTHON)
    if (root / scripts.lstrip("/")).exists() and Path(scripts).parent != Path(sys.executable).parent:
        pythons.append(scripts)
    lacking = [python for python in pythons if has(python, "pynvml") is False]
    where = ", ".join(found)
    if not lacking:
        return [Advice(Severity.OK, ABOUT, f"installed; this node has an NVIDIA GPU or driver ({where})")]
    # A library alone is also on machines that share an image with the nodes.
    level = Severity.ADVICE if all(sign.endswith(_LIBRARY) for sign in found) else Severity.WRONG
    sentence = "this node has an NVIDIA GPU or driver ({}), and {} lacks the binding: no check sees the GPUs"
    return [
        Advice(level, ABOUT, sentence.format(where, python), f"{python} -m pip install nvidia-ml-py")
        for python in lacking
    ]


def _torch(nodetest: NodetestConfig, has: Has) -> list[Advice]:
    """Check whether suspects and standby nodes can be tested with another node, and GPUs by computing on them."""
    python = nodetest.python or sys.executable
    if has(python, "torch") is not False:
        return []
    also = "nothing computes on the GPUs in a full check" if not nodetest.python else ""
    tests = "no suspect or standby node is tested with another node (nodetest)" if nodetest.tests else ""
    loss = ", and ".join(part for part in (tests, also) if part)
    if not loss:
        return []
    fix = f"{python} -m pip install torch" + (
        "" if nodetest.python else "   (or name one that has it: nodetest.python)"
    )
    return [Advice(Severity.ADVICE, "PyTorch", f"{python} has none: {loss}", fix)]


def has_module(root: Path, python: str, module: str) -> bool | None:
    """Return whether this Python has the module; None if only it could tell. It is not run: root may not trust it."""
    if python == sys.executable:
        return importlib.util.find_spec(module) is not None
    place = root / python.lstrip("/")
    if not place.exists():
        return False
    prefix = place.parent.parent
    try:
        alone = "include-system-site-packages = false" in (prefix / "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        return None
    folders = [folder for lib in ("lib", "lib64") for folder in prefix.glob(f"{lib}/python3*/site-packages")]
    there = any((folder / name).exists() for folder in folders for name in (module, f"{module}.py"))
    return there or (False if alone and folders else None)
