"""Knows names that are common in checkpoints' pickles: a name with one letter changed is recognised as damage.

Names in a pickle are never imported here, so a wrong one would otherwise be noticed only when a load fails. Unknown
names pass.
"""

from __future__ import annotations

_OF_TORCH = (
    "Size", "device", "strided", "sparse_coo", "sparse_csr", "sparse_csc",
    "sparse_bsr", "sparse_bsc", "contiguous_format", "preserve_format", "channels_last",
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32",
    "uint64", "quint8", "qint8", "qint32",
)  # fmt: skip
_STORAGES = (
    "Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "ComplexFloat",
    "ComplexDouble", "Untyped", "QInt8", "QUInt8", "QInt32",
)  # fmt: skip
_OF_METADATA = (
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
    "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_OTHERS = (
    "collections.OrderedDict", "collections.defaultdict", "argparse.Namespace", "pathlib.PosixPath", "pathlib.Path",
    "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch.serialization._get_layout", "torch.storage._load_from_bytes",
    "torch.storage.UntypedStorage", "torch.distributed.checkpoint.filesystem._StorageInfo",
    "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype",
)  # fmt: skip
_KNOWN = frozenset(
    [
        *(f"torch.{name}" for name in _OF_TORCH),
        *(f"torch.{name}Storage" for name in _STORAGES),
        *(f"torch.distributed.checkpoint.metadata.{name}" for name in _OF_METADATA),
        *_OTHERS,
    ]
)


_CALLED_ANYWHERE = frozenset({"torch", "numpy", "collections", "argparse", "pathlib", "datetime", "copyreg", "_codecs"})
"""Modules whose functions rebuild plain values; the first part of their names."""
_BUILTINS = frozenset({
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "getattr", "int", "list", "object", "range",
    "set", "slice", "str", "tuple",
})  # fmt: skip


def rebuilds(path: str) -> bool:
    """Return whether a function or class of that name is one that pickles call to rebuild a plain value or a tensor."""
    module, _, name = path.partition(".")
    return module in _CALLED_ANYWHERE or (module in ("builtins", "__builtin__") and name in _BUILTINS)


def meant(path: str) -> str:
    """Return the name that `path` is with one letter changed; empty if it is a name of its own.

    A digit for another one is a later version, `_rebuild_tensor_v4`, and no damage.
    """
    if path in _KNOWN:
        return ""
    for known in _KNOWN:
        if len(known) == len(path):
            changed = [(one, other) for one, other in zip(known, path, strict=True) if one != other]
            if len(changed) == 1 and not (changed[0][0].isdecimal() and changed[0][1].isdecimal()):
                return known
    return ""
