"""Defines the messages about warm processes between supervisor and agents; `messages` lists them, too."""

from __future__ import annotations

from typing import NamedTuple


class WarmAnswer(NamedTuple):
    """A node agent's knowledge of the warm processes there.

    Attributes:
        tasks: Tasks whose warm process is ready; after `go`, tasks that have started the program.
        refused: Why one of the processes must not become a rank; empty if all may.
        offender: The module that is the reason; empty for none.
        modules: How many modules each process has imported; the smallest number.
        seconds: How long the slowest process took to start and import.
        memory_bytes: The processes' own memory, without shared memory.
        available_bytes: How much more memory the job may take on this node; -1 if it is not known.
        packed: The record of a rank's imports, packed; empty if it was not asked for, or there is none.
    """

    node: str
    request_id: int
    tasks: tuple[int, ...] = ()
    refused: str = ""
    offender: str = ""
    modules: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    available_bytes: int = -1
    packed: str = ""


class AskWarm(NamedTuple):
    """Give an order to the warm processes of an attempt that has not begun (`warm_processes`), and answer.

    Attributes:
        order: `prepare`, `state` or `go` for the processes; `memory` is `state` with their memory. `room` and `record`
            ask the agent alone.
        packed: Data for the order, packed; empty for none.
        only: The node whose agent answers; empty for all.
        within_s: How long the supervisor waits for the answer.
    """

    request_id: int
    attempt: str
    order: str
    packed: str = ""
    only: str = ""
    within_s: float = 1.0
