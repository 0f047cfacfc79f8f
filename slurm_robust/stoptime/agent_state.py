"""Keeps what the agent of one node has told so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class AgentState:
    """One node of the run.

    Attributes:
        index: The node's number in the step; -1 before its agent's first message.
        heard_s: When its agent last sent a message (monotonic).
        loaded: The node's rank server has told whether it can work.
        has_torch: False if PyTorch cannot be loaded on the node.
        trouble: Why no rank can run on the node; empty if ranks can.
        gone: Why the node left the test, as a sentence; empty while it takes part.
        answers: The agent's answer to each order, by the order's number.
        ranks: The results of the node's own ranks, by the order's number.
        digests: The results of its devices in the alignment test.
        of_job: Whether its ranks have the NCCL variables of the job's own ranks there.
    """

    index: int = -1
    host: str = ""
    step: str = ""
    heard_s: float = 0.0
    gpus: int = 0
    ready: bool = False
    loaded: bool = False
    has_torch: bool = True
    trouble: str = ""
    gone: str = ""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    ranks: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    digests: list[dict[str, Any]] = field(default_factory=list)
    of_job: bool = False

    def take(self, message: dict[str, Any]) -> None:
        """Note the content of one message."""
        kind = message.get("t")
        if kind == "hello":
            self.index, self.host, self.step = message["index"], message["host"], message["step"]
        elif kind == "taken":
            self.gone = f"another srobust test runs on {message['node']}"
        elif kind == "environment":
            self.of_job = bool(message["of_job"])
        elif kind == "no_torch":
            self.loaded, self.has_torch, self.trouble = True, False, str(message["reason"])
        elif kind == "ready":
            busy = f"a GPU is in use by another process: {message['busy']}" if message["busy"] else ""
            self.loaded, self.gpus = True, message["gpus"]
            self.trouble = message["reason"] or busy
            self.ready = not self.trouble
        elif kind == "result":
            self.answers[message["id"]] = message
        elif kind == "rank":
            self.ranks.setdefault(message["id"], []).append(message)
        elif kind == "digests":
            self.digests.append(message)
