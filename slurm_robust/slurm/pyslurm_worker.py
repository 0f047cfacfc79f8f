"""Runs pyslurm in a process: reads JSON requests, one a line, and writes JSON replies, one a line.

libslurm ends its process if its configuration is wrong, and pyslurm holds the interpreter's lock during every call. In
a process of its own neither does harm: the caller has a deadline, and ends this process after it.

The calls themselves are in `pyslurm_objects` and `pyslurm_functions`. A call that this pyslurm cannot do is answered by
`Unable`, one in which it failed by `Broken`; the commands are used instead.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import IO, Any

import msgspec

from slurm_robust.slurm import pyslurm_functions, pyslurm_objects
from slurm_robust.slurm.errors import SlurmError, SlurmMissingError, from_text
from slurm_robust.slurm.pyslurm_messages import Broken, Reply, Request, Unable


def answer(calls: object, request: Request, slurm_errors: tuple[type[Exception], ...]) -> Reply:
    """Carry out one request; an error is a reply, too."""
    try:
        call: Callable[..., Any] = getattr(calls, request.call)
        return Reply(value=msgspec.Raw(msgspec.json.encode(call(**request.args))))
    except Unable as reply:
        return Reply(type(reply).__name__, request.what, str(reply))
    except SlurmError as error:
        return Reply(type(error).__name__, request.what, str(error))
    except Exception as error:  # noqa: BLE001 (every error of pyslurm is a reply: this process serves the next call)
        # The older functions raise ValueError(words, number), the object API RPCError(words). Others are not Slurm's.
        if isinstance(error, slurm_errors) or (type(error) is ValueError and len(error.args) == 2):
            found = from_text(request.what, str(error.args[0] if error.args else error))
            return Reply(type(found).__name__, found.what, found.text)
        return Reply(Broken.__name__, request.what, f"{type(error).__name__}: {error}"[:300])


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer until there are no more requests."""

    def reply(content: Reply) -> None:
        replies.write(msgspec.json.encode(content) + b"\n")
        replies.flush()

    try:
        import pyslurm  # noqa: PLC0415 (runs slurm_init: only here, where an error can be reported)
    except Exception as error:  # noqa: BLE001 (a pyslurm of another Slurm can fail in any way)
        for _ in requests:
            reply(Reply(SlurmMissingError.__name__, "import pyslurm", f"{type(error).__name__}: {error}"[:300]))
        return
    modern = hasattr(pyslurm, "Reservations")
    calls = pyslurm_objects.Objects(pyslurm) if modern else pyslurm_functions.Functions(pyslurm)
    own = getattr(pyslurm, "PyslurmError", None)
    slurm_errors = (own,) if isinstance(own, type) else ()
    for line in requests:
        reply(answer(calls, msgspec.json.decode(line, type=Request), slurm_errors))


def main() -> None:
    """Entry point: requests on stdin; stdout is for replies only, and what libslurm prints is sent to stderr."""
    # A read makes thousands of objects that live until its reply: searching them for garbage costs more than the read.
    gc.set_threshold(100_000)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
