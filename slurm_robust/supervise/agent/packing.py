"""Packs long values as compressed JSON in a text."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

MAX_UNPACKED_BYTES = 256 << 20


def pack(value: Any) -> str:
    """Return a JSON-able value as compressed text."""
    return base64.b64encode(zlib.compress(json.dumps(value).encode(), 6)).decode()


def unpack(packed: str) -> bytes:
    """Return the JSON of a packed value, still as bytes.

    Raises:
        ValueError: the text is cut off, garbled or too large.
    """
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not engine.eof:
        raise ValueError("cut off, or too large")
    return raw
