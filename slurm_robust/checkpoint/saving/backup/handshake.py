"""Authenticates the persisters of two nodes to each other: both know a secret of the run, and neither sends it.

The ranks agree on the secret over their own process group, and each tells its persister. What is sent afterwards is
not encrypted, just as torch.distributed's own traffic is not.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from slurm_robust.checkpoint.saving.shared.messages import CallerRun

_MAGIC = b"srobbak1"
_LENGTH = struct.Struct("<L")
_NONCE_BYTES = 32
_PROOF_BYTES = 32
MOST_BYTES = 64 << 10
"""The most bytes of one message; metadata and copies are sent beside messages."""
_Message = TypeVar("_Message", bound=msgspec.Struct)


class HandshakeError(OSError):
    """The other side is not the expected persister, or sends something else than the protocol's messages."""


def _proof(secret: bytes, role: bytes, node: str, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + node.encode() + nonces, "sha256")


def send(sock: socket.socket, message: msgspec.Struct) -> None:
    """Send one message. Raises OSError if the connection is closed."""
    text = msgspec.json.encode(message)
    sock.sendall(_LENGTH.pack(len(text)) + text)


def receive(sock: socket.socket, kind: type[_Message]) -> _Message:
    """Return the next message, of this class.

    Raises OSError if the connection is closed, or the bytes are no such message.
    """
    (length,) = _LENGTH.unpack(exactly(sock, _LENGTH.size))
    if length > MOST_BYTES:
        raise HandshakeError(f"a message of {length} bytes")
    try:
        return msgspec.json.decode(exactly(sock, length), type=kind)
    except ValueError as error:
        raise HandshakeError(str(error)) from None


def exactly(sock: socket.socket, length: int) -> bytes:
    """Read this many bytes. Raises OSError if the connection is closed."""
    found = bytearray(length)
    fill(sock, memoryview(found))
    return bytes(found)


def fill(sock: socket.socket, into: memoryview) -> None:
    """Read until `into` is full. Raises OSError if the connection is closed."""
    while len(into):
        got = sock.recv_into(into)
        if not got:
            raise ConnectionResetError("the other side has closed the connection")
        into = into[got:]


def authenticate_to(sock: socket.socket, secret: bytes, run: str, node: str) -> None:
    """Check, as caller, that the other side is persister `node` of this run, and prove that this one belongs to it.

    Raises:
        HandshakeError: the other side does not know the run's secret, or is another node.
        OSError: the connection failed.
    """
    mine = os.urandom(_NONCE_BYTES)
    sock.sendall(_MAGIC + mine)
    send(sock, CallerRun(run))
    theirs = exactly(sock, _NONCE_BYTES)
    if not hmac.compare_digest(exactly(sock, _PROOF_BYTES), _proof(secret, b"called", node, mine + theirs)):
        raise HandshakeError(f"the persister that answers is not node {node} of this run")
    sock.sendall(_proof(secret, b"caller", node, theirs + mine))


def authenticate_caller(sock: socket.socket, secret_of: Callable[[str], bytes | None], node: str) -> str:
    """Check, on the called side, that the caller knows its run's secret; return the run.

    Raises:
        HandshakeError: the run is not known here, or the caller does not know its secret.
        OSError: the connection failed.
    """
    if exactly(sock, len(_MAGIC)) != _MAGIC:
        raise HandshakeError("the caller speaks another protocol")
    theirs = exactly(sock, _NONCE_BYTES)
    run = receive(sock, CallerRun).run
    secret = secret_of(run)
    if secret is None:
        raise HandshakeError("the caller's run is not known here")
    mine = os.urandom(_NONCE_BYTES)
    sock.sendall(mine + _proof(secret, b"called", node, theirs + mine))
    if not hmac.compare_digest(exactly(sock, _PROOF_BYTES), _proof(secret, b"caller", node, mine + theirs)):
        raise HandshakeError("the caller does not know the run's secret")
    return run
