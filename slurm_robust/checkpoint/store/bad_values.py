"""Finds NaN and Inf in the tensors of a checkpoint, in the raw bytes: nothing is unpickled, no tensor is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from slurm_robust.checkpoint.base import files
from slurm_robust.checkpoint.base.files import OnBytes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.formats import dcp, safetensors, torchfile

_CHUNK_BYTES = 8 << 20

# Element type → the unsigned integer of that size, and the bits that are all set in NaN and Inf.
_BITS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
}
_KINDS = {
    "Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "ComplexDouble": "F64", "ComplexFloat": "F32",
    "C64": "F32", "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "F32",
    "complex128": "F64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip
"""Names of element types in torch's files and in safetensors → the names above; integers are always finite."""

_BOOKKEEPING = ("callbacks.", "loops.")
"""Lightning's callbacks use infinity for a best loss that is not known yet."""
_Place = tuple[str, str, int, int]
"""Name, type, offset and length of a tensor."""


def not_finite(folder: Path, names: list[str], on_bytes: OnBytes | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for every tensor with values that are not finite.

    Raises:
        CheckpointError: numpy is not installed.
        OSError: a file cannot be read.
    """
    try:
        import numpy as np  # noqa: PLC0415 (needed only here)
    except ImportError:
        raise CheckpointError("counting values needs numpy, which is not installed", "pip install numpy") from None
    shards: dict[Path, dcp.Shards] = {}
    for name in names:
        with files.named(folder / name), (folder / name).open("rb") as file:
            for tensor, kind, offset, size_bytes in tensors_of(folder / name, file, shards):
                bits = _BITS.get(_KINDS.get(kind, kind))
                if bits is None or tensor.startswith(_BOOKKEEPING):
                    continue
                dtype = np.dtype(bits[0])
                file.seek(offset)
                count = sum(
                    int(np.count_nonzero((part & bits[1]) == bits[1]))
                    for part in _elements(np, dtype, file, size_bytes, on_bytes)
                )
                if count:
                    yield name, f"{tensor}: {count} of {size_bytes // dtype.itemsize} values are NaN or Inf"


def _elements(np: Any, dtype: Any, file: IO[bytes], size_bytes: int, on_bytes: OnBytes | None) -> Iterator[Any]:
    """Yield the next `size_bytes` of the file, as arrays of unsigned integers."""
    left = size_bytes
    while left >= dtype.itemsize and (data := file.read(min(left, _CHUNK_BYTES))):
        left -= len(data)
        if on_bytes is not None:
            on_bytes(len(data))
        yield np.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)


def tensors_of(path: Path, file: IO[bytes], shards: dict[Path, dcp.Shards]) -> Iterator[_Place]:
    """Yield the tensors of a file whose structure is intact; none if its format is unknown.

    `shards` caches metadata.
    """
    head = file.read(16)
    if path.name.endswith(".safetensors") or safetensors.looks_like(head, path.stat().st_size):
        for name, tensor in safetensors.read(file).tensors.items():
            yield name, tensor.kind, tensor.offset, tensor.size_bytes
        return
    if path.name.endswith(".distcp"):
        for start, length, name, region in dcp.pieces(path, file, shards):
            for _, kind, storage in _of(region):
                if storage.offset + storage.size_bytes <= length:
                    yield name, kind, start + storage.offset, storage.size_bytes
        return
    for name, kind, storage in _of(file):
        yield name, kind, storage.offset, storage.size_bytes


def _of(file: IO[bytes]) -> list[tuple[str, str, torchfile.Storage]]:
    """Return each storage once, by its first tensor."""
    content = torchfile.read(file, whole=False)
    if content is None:
        return []
    by_key: dict[str, tuple[str, str, torchfile.Storage]] = {}
    for name, kind, storage in torchfile.tensors(content):
        by_key.setdefault(storage.key, (name, kind, storage))
    return list(by_key.values())
