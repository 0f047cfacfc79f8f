"""Asks the agents about warm processes and gives orders for them; each question has a time limit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from slurm_robust.supervise.agent import packing
from slurm_robust.supervise.agent.warm_messages import AskWarm, WarmAnswer
from slurm_robust.supervise.session import Session
from slurm_robust.supervise.warm.warm_step import WarmStep

_POLL_S = 0.01
_PROCESS_S = 3.0
"""The most that an agent waits for a process, which may be importing or frozen."""


class Questions:
    """Asks, and collects the nodes' answers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked = 0

    async def agents(self, order: str, nodes: Sequence[str], within_s: float) -> dict[str, WarmAnswer]:
        """Return what the agents of these nodes know themselves."""
        only = nodes[0] if len(nodes) == 1 else ""
        return await self._ask(AskWarm(0, "", order, only=only), nodes, 0, within_s)

    async def processes(self, order: str, step: WarmStep, within_s: float, packed: str = "") -> dict[str, WarmAnswer]:
        """Return the answers of a warm step's processes, as soon as all processes, or all nodes, have answered."""
        request = AskWarm(0, step.name, order, packed)
        return await self._ask(request, self._session.allocation.nodes, step.tasks, within_s)

    async def _ask(self, request: AskWarm, nodes: Sequence[str], tasks: int, within_s: float) -> dict[str, WarmAnswer]:
        session, fleet = self._session, self._session.fleet
        self._asked += 1
        answers = fleet.warm.setdefault(self._asked, {})
        session.agents.send(request._replace(request_id=self._asked, within_s=min(within_s, _PROCESS_S)))
        until_s = session.clock.monotonic_s() + within_s
        while session.clock.monotonic_s() < until_s and not set(nodes) <= set(answers):
            if tasks and tasks_in(answers) >= set(range(tasks)):
                break
            await session.clock.sleep(_POLL_S)
        fleet.warm.pop(self._asked, None)
        return answers


def tasks_in(answers: Mapping[str, WarmAnswer]) -> set[int]:
    """Return the tasks that the nodes' answers name."""
    return {task for answer in answers.values() for task in answer.tasks}


def unpacked(packed: str) -> str:
    """Return the packed text; empty if the value is not a packed text."""
    try:
        found = json.loads(packing.unpack(packed)) if packed else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
