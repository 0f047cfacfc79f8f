"""Defines the messages about warm processes between supervisor and agents; `messages` lists them with all."""

from __future__ import annotations

from typing import NamedTuple


class WarmAnswer(NamedTuple):
    """What a node's agent knows of the warm processes there.

    Attributes:
        tasks: Tasks whose warm process is ready; after `go`, those that have started the program.
        refused: Why one of them must not become a rank; empty if all may.
        offender: The module because of which that is so; empty for none.
        modules: How many modules each has imported, the fewest of them.
        seconds: How long the slowest took to start and import.
        memory_bytes: Their own memory, without what they share.
        available_bytes: How much more memory the job may take on this node; -1 where that is not known.
        packed: The record of what a rank has imported, packed; empty if it was not asked for, or there is none.
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
        order: `prepare`, `state` or `go` for the processes, `memory` is `state` with their memory; `room` and `record`
            ask the agent alone.
        packed: What goes with the order, packed; empty for nothing.
        only: The node whose agent answers; empty for all.
        within_s: How long the supervisor waits for the answer.
    """

    request_id: int
    attempt: str
    order: str
    packed: str = ""
    only: str = ""
    within_s: float = 1.0
