"""Turns messages (NamedTuples) into JSON objects and back, by one table that names each field's key and reader."""

from __future__ import annotations

from typing import Any, Callable, Mapping

_REQUIRED = object()


class Codec:
    """Knows the messages that travel in one direction.

    Args:
        tag: Key under which an object names its kind.
        kinds: Kind → the class of its messages.
        fields: Field → its key in the object, and what reads the value; fields of one name are read alike.
    """

    def __init__(
        self, tag: str, kinds: Mapping[str, Any], fields: Mapping[str, tuple[str, Callable[[Any], Any]]]
    ) -> None:
        self._tag = tag
        self._kind_of = {cls: kind for kind, cls in kinds.items()}
        self._readers = {
            kind: (cls, [(*fields[name], cls._field_defaults.get(name, _REQUIRED)) for name in cls._fields])
            for kind, cls in kinds.items()
        }
        self._keys = {cls: [(fields[name][0], name) for name in cls._fields] for cls in kinds.values()}

    def encode(self, message: Any) -> dict[str, Any]:
        """The object that carries a message; fields that have their default value are left out."""
        cls = type(message)
        defaults = cls._field_defaults
        out = {self._tag: self._kind_of[cls]}
        for (key, name), value in zip(self._keys[cls], message):
            if name not in defaults or value != defaults[name]:
                out[key] = value
        return out

    def decode(self, raw: Mapping[str, Any]) -> Any:
        """The message that an object carries.

        Raises:
            ValueError: its kind is unknown, a field is missing, or a value is not what the field holds.
        """
        try:
            cls, readers = self._readers[raw[self._tag]]
            values = [
                read(raw[key]) if default is _REQUIRED or key in raw else default for key, read, default in readers
            ]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"not a message ({type(error).__name__}: {error})") from None
        return cls._make(values)
