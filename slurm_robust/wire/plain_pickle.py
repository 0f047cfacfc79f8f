"""Reads a stranger's pickle or JSON within bounds. Standard library only, nothing of the package, Python 3.8.

A few hundred bytes can reserve gigabytes (a length, a place in the memo), or share one value so often that its text or
its hash never ends (`b = (a, a); c = (b, b); …`).
"""

from __future__ import annotations

import pickle
import struct
from itertools import chain
from typing import Any, Callable, ClassVar

MAX_DEPTH = 1000
MAX_KEY_SIZE = 10_000
"""The largest key of a dictionary or member of a set, as `written_size` counts."""


def written_size(value: Any, most: int, skip: str | None = None) -> int:
    """Return about how many characters a value has once it is written out, repeating shared parts.

    Args:
        value: A value of any kind; the contents of dictionaries, lists, tuples and sets count.
        most: The most that is allowed.
        skip: A key whose values do not count; None for none.

    Raises:
        ValueError: The value has more than `most`, contains itself, or is nested too deep.
    """
    known: dict[int, int] = {}  # of containers: 0 while inside
    totals = [1]
    todo: list[tuple[Any, int]] = [(iter((value,)), 0)]  # no recursion: JSON may be nested as deep as Python's stack
    while todo:
        for part in todo[-1][0]:
            if isinstance(part, (dict, list, tuple, set, frozenset)) and id(part) not in known:
                if len(todo) > MAX_DEPTH:
                    raise ValueError(f"nested more than {MAX_DEPTH} times")
                known[id(part)] = 0
                inside = (
                    chain(part, (v for k, v in part.items() if skip is None or k != skip))
                    if isinstance(part, dict)
                    else part
                )
                todo.append((iter(inside), id(part)))
                totals.append(1)
                break
            size = _size_of_leaf(part) if id(part) not in known else known[id(part)]
            if not size:
                raise ValueError("a value that contains itself")
            totals[-1] += size
            if totals[-1] > most:
                raise ValueError(f"a value of more than {most} characters, most of them said by reference")
        else:
            done, total = todo.pop()[1], totals.pop()
            known[done] = total
            if not todo:
                return total - 1
            totals[-1] += total
            if totals[-1] > most:
                raise ValueError(f"a value of more than {most} characters, most of them said by reference")
    raise AssertionError("the first of the list returns")


def _size_of_leaf(part: Any) -> int:
    if isinstance(part, (str, bytes, bytearray)):
        return 1 + len(part)
    return 1 + part.bit_length() // 3 if isinstance(part, int) else 1


def _looking_first(name: str, keys: slice) -> Callable[[Any], None]:
    """Return Python's reader of an opcode, preceded by a look at the part of its stack that the opcode will hash."""
    usual: Callable[[Any], None] = getattr(pickle._Unpickler, name)

    def load(reader: Any) -> None:
        for key in reader.stack[keys]:
            if isinstance(key, (tuple, frozenset)):
                written_size(key, MAX_KEY_SIZE)
        usual(reader)

    return load


_Python: Any = pickle._Unpickler  # its methods are typed nowhere


# Python's own: the C one keeps what is to be referred to again in an array as long as the largest number that the file
# names, and one garbled byte makes that gigabytes.
class BoundedUnpickler(_Python):  # type: ignore[misc]
    """A reader that reserves no more than the file has, and hashes nothing that is endless.

    Which classes it finds is a subclass's choice.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        """Read the bytes first: Python would reserve as many bytes as the file claims."""
        (size_bytes,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size_bytes)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    for _opcode, _name, _keys in (
        (pickle.SETITEM, "load_setitem", slice(-2, -1)),
        (pickle.SETITEMS, "load_setitems", slice(None, None, 2)),
        (pickle.DICT, "load_dict", slice(None, None, 2)),
        (pickle.ADDITEMS, "load_additems", slice(None)),
        (pickle.FROZENSET, "load_frozenset", slice(None)),
    ):
        dispatch[_opcode[0]] = _looking_first(_name, _keys)
