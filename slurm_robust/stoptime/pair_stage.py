"""Runs the rounds of pairs: gives the orders, and waits for the answers; `pairing` chooses the pairs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_robust.stoptime import pairing
from slurm_robust.stoptime.agent_state import AgentState
from slurm_robust.stoptime.group_results import ended_badly, group_result
from slurm_robust.stoptime.pairing import Group, GroupResult

PAIR_GPU_S, PAIR_CPU_S = 30.0, 15.0
"""Time for one round of pairs: NCCL takes up to ten seconds to connect many GPUs."""
SLOW_SHARE_GPU, SLOW_SHARE_CPU = 0.5, 0.2
"""Below this share of the round's median a pair is slow. Processors share their time with other work on a node."""
MARGIN_S = 6.0
"""An agent answers at most so long after its limit: it first kills processes that hang."""
_ALONE_S = 3.0
"""Ranks whose partner failed may report for so long; then their test is ended."""
_PORTS = range(20_000, 28_000)
"""Ports of a run, below Linux's range for outgoing connections; each group has the next port."""


@dataclass(frozen=True)
class PairChannel:
    """The way in which the rounds reach the nodes.

    Attributes:
        states: The state of each node of the run.
        gone: Node that left the test → the reason.
        limit: Returns how long a stage may take, up to the given time; 0 if the budget leaves too little.
        order: Gives an order with this limit, and returns its number.
        tell: Sends a message that is not an order.
        until: Waits until a condition holds, at most so long.
        over: Returns whether the step has ended.
        progress: Tells the user a sentence.
    """

    states: Mapping[str, AgentState]
    gone: Mapping[str, str]
    limit: Callable[[float], float]
    order: Callable[[dict[str, Any], float], int]
    tell: Callable[[dict[str, Any]], None]
    until: Callable[[Callable[[], bool], float], Awaitable[bool]]
    over: Callable[[], bool]
    progress: Callable[[str], None]


class PairStage:
    """Has nodes meet in pairs, round by round.

    Attributes:
        cut_after: After how many rounds the budget was used up; None if all rounds were made.
    """

    def __init__(self, channel: PairChannel) -> None:
        self._channel = channel
        self.cut_after: int | None = None

    async def rounds(self, nodes: list[str], shape: Sequence[str] = ()) -> list[tuple[GroupResult, ...]]:
        """Return the results of all rounds: of the known numbers, or of the steps of these kinds of parallelism."""
        states, channel = self._channel.states, self._channel
        on_gpus = any(states[node].gpus for node in nodes)
        share, round_s = (SLOW_SHARE_GPU, PAIR_GPU_S) if on_gpus else (SLOW_SHARE_CPU, PAIR_CPU_S)
        rounds: list[tuple[GroupResult, ...]] = []
        while groups := pairing.next_round(nodes, rounds):
            limit_s = channel.limit(round_s)
            if not limit_s:
                self.cut_after = len(rounds)
                break
            what = f"alignment in the shape of the job ({', '.join(shape)})" if shape else "pairs"
            channel.progress(f"{what}: round {len(rounds) + 1}, {len(groups)} side by side")
            results = await self._one_round(groups, limit_s, shape, cut=limit_s < round_s)
            rounds.append(results if shape else pairing.judge_bandwidth(results, share, rounds))
            if channel.over():
                break
        return rounds

    async def _one_round(
        self, groups: Sequence[Group], limit_s: float, shape: Sequence[str], *, cut: bool
    ) -> tuple[GroupResult, ...]:
        first_port, channel = secrets.choice(_PORTS), self._channel
        shown = [self._shown(group, first_port + number) for number, group in enumerate(groups)]
        members = [node for group in groups for node in group]
        order = {"c": "pairs", "groups": shown, "secret": secrets.token_hex(32), "shape": list(shape)}
        number = channel.order(order, limit_s)
        alone_since: dict[Group, float] = {}
        await channel.until(lambda: self._groups_done(groups, number, alone_since), limit_s + MARGIN_S)
        states = channel.states
        answers = {node: states[node].answers[number] for node in members if number in states[node].answers}
        return tuple(group_result(group, answers, channel.gone, limit_s, cut=cut) for group in groups)

    def _groups_done(self, groups: Sequence[Group], number: int, alone_since: dict[Group, float]) -> bool:
        """Return whether no answer is awaited any more; also end tests of ranks whose partner just failed or left."""
        done, gone, states = True, self._channel.gone, self._channel.states
        for group in groups:
            waiting = [n for n in group if n not in gone and number not in states[n].answers]
            if not waiting:
                continue
            done = False
            if any(n in gone or ended_badly(states[n].answers.get(number, {})) for n in group):
                since_s = alone_since.setdefault(group, time.monotonic())
                if 0 < since_s < time.monotonic() - _ALONE_S:
                    alone_since[group] = -1.0
                    self._channel.tell({"c": "cancel", "id": number, "only": [states[n].index for n in waiting]})
        return done

    def _shown(self, group: Group, port: int) -> list[Any]:
        """Return a group in the form for agents: all members use GPUs, or none does."""
        states = [self._channel.states[node] for node in group]
        on_gpus = all(state.gpus for state in states)
        return [port, states[0].host, [[state.index, state.gpus if on_gpus else 0] for state in states]]
