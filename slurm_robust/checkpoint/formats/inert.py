"""Reads pickles without executing them: each class or function named in a pickle becomes an object that does nothing.

`torch.save` and `torch.distributed.checkpoint` describe their tensors in pickles. Usual unpickling runs the functions
that a pickle names; this module imports nothing, and calls only its own husks.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any

from slurm_robust.checkpoint.formats import names
from slurm_robust.wire.plain_pickle import BoundedUnpickler

MALFORMED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors for bytes that are not a pickle, or a damaged one."""


MAX_NAME_CHARS, MAX_NAMES = 1000, 10_000


class Husk:
    """A stand-in for an instance of a class that the pickle names: it only keeps what it was given.

    Attributes:
        path: Module and name, `torch.Size`; also the path of the class itself, if the pickle names it without calling
            it.
        args: The arguments of the call.
        state: The attributes that the instance would have.
        items: Values that were put into it by key (into an OrderedDict, say).
        members: Values that were appended or added.
    """

    path = ""
    called = False
    """On the class: whether the pickle calls what the class stands for. Making an object in another way is no call."""

    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]
    members: list[Any]

    def __new__(cls, *args: Any) -> Husk:
        """Pickles make some without calling `__init__`."""
        husk = super().__new__(cls)
        husk.args, husk.state, husk.items, husk.members = args, None, {}, []
        return husk

    def __init__(self, *args: Any) -> None:
        """Note the call: only a call in the pickle comes here."""
        type(self).called = True
        # Some versions of Python store a member of an enumeration as `getattr(class, name)`: that is the class's call.
        if (
            self.path in ("builtins.getattr", "__builtin__.getattr")
            and args
            and isinstance(args[0], type)
            and issubclass(args[0], Husk)
        ):
            args[0].called = True

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        """Append a value: pickles build list-like objects so."""
        self.members.append(value)

    add = append

    def extend(self, values: Any) -> None:
        """Append several values at once."""
        self.members.extend(values)


class _Reader(BoundedUnpickler):
    """Python's own reader, not the one in C: a damaged length or memo index cannot make it reserve gigabytes."""

    def __init__(self, file: IO[bytes], on_storage: Callable[[Any], None] | None) -> None:
        super().__init__(file, encoding="utf-8", errors="replace")
        self._on_storage = on_storage
        self._husks: dict[str, type[Husk]] = {}

    def find_class(self, module: str, name: str) -> type[Husk]:
        """Return the husk of that name, without an import.

        Raises UnpicklingError for a well-known name with one letter changed.
        """
        path = f"{module}.{name}"
        if path not in self._husks:
            if len(path) > MAX_NAME_CHARS or len(self._husks) >= MAX_NAMES:
                raise pickle.UnpicklingError("names more, or longer, classes than any checkpoint")
            if known := names.meant(path):
                raise pickle.UnpicklingError(f"names {path!r} where {known!r} is meant")
            self._husks[path] = type("Husk", (Husk,), {"path": path})
        return self._husks[path]

    def get_extension(self, code: int) -> Any:
        """Refused: registered extensions would be found without `find_class`."""
        raise pickle.UnpicklingError(f"extension code {code}")

    def persistent_load(self, pid: Any) -> Any:
        """Return a stand-in for a tensor's bytes, which lie elsewhere, or for a class.

        Before 1.6, torch saved a class with its source.
        """
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module" and path_of(pid[1]):
            return pid[1]
        if self._on_storage is not None:
            self._on_storage(pid)
        return self.find_class("", "storage")(pid)


def load(
    file: IO[bytes] | bytes,
    on_storage: Callable[[Any], None] | None = None,
    on_call: Callable[[str], None] | None = None,
) -> Any:
    """Return the structure of one pickle; leave `file` at its end.

    Args:
        file: A buffered binary file, or the bytes.
        on_storage: Told of every persistent id, in the order in which they stand.
        on_call: Told of every function and class that unpickling would call, once each.

    Raises:
        ValueError: it is no whole pickle.
        OSError: it cannot be read.
    """
    stream: IO[bytes] = io.BytesIO(file) if isinstance(file, bytes) else file
    try:
        reader = _Reader(stream, on_storage)
        value = reader.load()
    except MALFORMED as error:
        raise ValueError(f"no whole pickle: {error or type(error).__name__}") from error
    if on_call is not None:
        for path, husk in reader._husks.items():
            if husk.called:
                on_call(path)
    return value


def is_a(value: Any, name: str) -> bool:
    """Return True for a husk of a class of that name, in any module (classes move between versions)."""
    return isinstance(value, Husk) and value.path.rpartition(".")[2] == name


def path_of(value: Any) -> str:
    """Return `torch.float32` for that name in a pickle, called or not; empty for anything else."""
    if isinstance(value, Husk):
        return value.path
    return value.path if isinstance(value, type) and issubclass(value, Husk) else ""


def field(value: Any, name: str) -> Any:
    """Return the attribute or entry of that name, of a husk or a dict; None if there is none."""
    if isinstance(value, Husk):
        state = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        found = state.get(name) if isinstance(state, dict) else None
        return value.items.get(name) if found is None else found
    return value.get(name) if isinstance(value, dict) else None


def number(value: Any, name: str) -> int | None:
    """Return the attribute or entry of that name if it is a whole number; otherwise None."""
    found = field(value, name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def walk(value: Any, name: str = "", *, depth: int = 24) -> Iterator[tuple[str, Husk]]:
    """Yield (name, husk) of everything in nested dicts, lists and tuples, `model.layer.0.weight` by its keys."""
    seen: set[int] = set()
    todo: list[tuple[Any, str, int]] = [(value, name, depth)]
    while todo:
        value, name, left = todo.pop()
        if id(value) in seen or left == 0:
            continue
        inside: list[tuple[Any, Any]] = []
        if isinstance(value, Husk):
            yield name, value
            inside = list(value.items.items())
            if isinstance(value.state, dict):
                inside += value.state.items()
        elif isinstance(value, dict):
            inside = list(value.items())
        elif isinstance(value, (list, tuple)):
            inside = list(enumerate(value))
        if inside:
            seen.add(id(value))
        todo += [(one, f"{name}.{key}" if name else str(key), left - 1) for key, one in reversed(inside)]
