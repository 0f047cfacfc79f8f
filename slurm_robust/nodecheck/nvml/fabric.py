"""Asks how a GPU stands with Fabric Manager: a call whose structure has grown with each version of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def read(ask: Callable[..., Any], _: Mapping[str, Any]) -> dict[str, int]:
    """Read the GPU's state in Fabric Manager, by the newest call and structure that binding and driver both have.

    The structures are our own: the binding's had a name of 80 bytes instead of 16 in them until 2025 (12.570).
    """
    import ctypes  # noqa: PLC0415 (loaded already, by the session)

    since: list[tuple[str, Any]] = [("name", ctypes.c_uint8 * 16), ("status", ctypes.c_uint)]
    since += [
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("health", ctypes.c_uint),
        ("summary", ctypes.c_uint8),
    ]

    def structure(version: int) -> Any:
        first = [("version", ctypes.c_uint)] if version > 1 else []
        fields = [*first, *since[: version + 3]]
        said = type("Fabric", (ctypes.Structure,), {"_fields_": fields})()
        if version > 1:
            said.version = version << 24 | ctypes.sizeof(said)
        return said

    for version in (3, 2):
        said = structure(version)
        try:
            ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(said))
        except Exception as error:
            if getattr(error, "value", None) in (2, 13, 25):
                continue
            raise
        return _numbers(said)
    said = structure(1)
    ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(said))
    return _numbers(said)


def _numbers(said: Any) -> dict[str, int]:
    names = ("state", "status", "health", "summary")
    return {name: int(getattr(said, name)) for name in names if hasattr(said, name)}
