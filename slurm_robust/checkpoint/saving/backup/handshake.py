"""How the persisters of two nodes make sure of each other: both know a secret of the run, and neither says it.

The ranks agree on the secret over their own group, and each tells its persister. What is sent afterwards is not hidden
from who can read the network, as torch.distributed's own traffic is not.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

_MAGIC = b"srobbak1"
_LENGTH = struct.Struct("<L")
_NONCE_BYTES = 32
_PROOF_BYTES = 32
MOST_BYTES = 64 << 10
"""Of one message; descriptions and contents travel beside them."""


class HandshakeError(OSError):
    """The other side is not who it should be."""


def _proof(secret: bytes, role: bytes, node: str, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + node.encode() + nonces, "sha256")


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
    """
    text = msgspec.json.encode(message)
    sock.sendall(_LENGTH.pack(len(text)) + text)


def receive(sock: socket.socket) -> dict[str, Any]:
    """The next message.

    Raises:
        OSError: the other side is gone, or says what makes no sense.
    """
    (length,) = _LENGTH.unpack(exactly(sock, _LENGTH.size))
    if length > MOST_BYTES:
        raise HandshakeError(f"a message of {length} bytes")
    try:
        return msgspec.json.decode(exactly(sock, length), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise HandshakeError(str(error)) from None


def exactly(sock: socket.socket, length: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: the other side is gone.
    """
    found = bytearray(length)
    fill(sock, memoryview(found))
    return bytes(found)


def fill(sock: socket.socket, into: memoryview) -> None:
    """As many bytes as `into` takes.

    Raises:
        OSError: the other side is gone.
    """
    while len(into):
        got = sock.recv_into(into)
        if not got:
            raise ConnectionResetError("the other side has hung up")
        into = into[got:]


def greet(sock: socket.socket, secret: bytes, run: str, node: str) -> None:
    """The side that called: is this node `node`, and does it know the run's secret?

    Raises:
        StrangerError: it is not, or does not.
        OSError: as sockets do.
    """
    mine = os.urandom(_NONCE_BYTES)
    sock.sendall(_MAGIC + mine)
    send(sock, {"run": run})
    theirs = exactly(sock, _NONCE_BYTES)
    if not hmac.compare_digest(exactly(sock, _PROOF_BYTES), _proof(secret, b"called", node, mine + theirs)):
        raise HandshakeError(f"who answers is not node {node} of this run")
    sock.sendall(_proof(secret, b"caller", node, theirs + mine))


def welcome(sock: socket.socket, secret_of: Callable[[str], bytes | None], node: str) -> str:
    """The side that was called; the run that the caller belongs to.

    Raises:
        StrangerError: it is of no run that is known here.
        OSError: as sockets do.
    """
    if exactly(sock, len(_MAGIC)) != _MAGIC:
        raise HandshakeError("it speaks something else")
    theirs = exactly(sock, _NONCE_BYTES)
    run = str(receive(sock).get("run"))
    secret = secret_of(run)
    if secret is None:
        raise HandshakeError("its run is not known here")
    mine = os.urandom(_NONCE_BYTES)
    sock.sendall(mine + _proof(secret, b"called", node, theirs + mine))
    if not hmac.compare_digest(exactly(sock, _PROOF_BYTES), _proof(secret, b"caller", node, mine + theirs)):
        raise HandshakeError("it does not know the run's secret")
    return run
