"""Converts messages (NamedTuples) to JSON objects and back; keys and readers follow from field names and types."""

from __future__ import annotations

from typing import Any, Callable, Generic, Mapping, TypeVar, cast

_REQUIRED = object()
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "str": str,
    "float": float,
    "bool": bool,
    "tuple[int, ...]": lambda numbers: tuple(map(int, numbers)),
    "tuple[str, ...]": lambda texts: tuple(map(str, texts)),
}

Message = TypeVar("Message")


class Codec(Generic[Message]):
    """Knows the messages that are sent in one direction.

    A message's object names the kind of the message under `tag`. `keys` has the fields whose key differs from their
    name. `readers` has the function that reads a value, by the type annotation of its field.
    """

    def __init__(
        self, tag: str, kinds: Mapping[str, Any], keys: Mapping[str, str], readers: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        read = {**_PLAIN, **readers}
        self._tag = tag
        self._class_of = kinds
        self._kind_of = {cls: kind for kind, cls in kinds.items()}
        self._fields = {
            cls: [
                (keys.get(name, name), read[hint.__forward_arg__], cls._field_defaults.get(name, _REQUIRED))
                for name, hint in cls.__annotations__.items()
            ]
            for cls in self._kind_of
        }

    def encode(self, message: Message) -> dict[str, Any]:
        """Return the object that carries a message; fields that have their default value are left out."""
        cls, values = type(message), cast("tuple[Any, ...]", message)
        chosen = {key: value for (key, _, default), value in zip(self._fields[cls], values) if value != default}
        return {self._tag: self._kind_of[cls], **chosen}

    def decode(self, raw: Mapping[str, Any]) -> Message:
        """Return the message that an object carries.

        Raises:
            ValueError: the kind is unknown, a field is missing, or a value does not fit its field.
        """
        try:
            cls = self._class_of[raw[self._tag]]
            made: Message = cls._make(
                read(raw[key]) if default is _REQUIRED or key in raw else default
                for key, read, default in self._fields[cls]
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a message ({type(error).__name__}: {error})") from None
        return made
