"""Stands in for the watch step's `srun`: speaks as many agents at once, each with its ranks, as real ones would.

    fake_agents.py AGENTS RANKS_EACH MESSAGES_A_SECOND PHASE

Every agent says hello, its ranks and their marks, then a progress message for all its ranks at the rate given, each at
its own time within the second. Ends when its input ends, as agents do. PHASE is what the ranks say they are doing;
`timed` is training in which they also tell the times of their steps, sent every fifth step as agents do.
"""

from __future__ import annotations

import json
import select
import sys
import time

SLICES = 20
"""Parts of a period; the agents are spread over them."""


def line(message: dict[str, object]) -> str:
    """One message as agents send it."""
    return "~SR1 " + json.dumps(message, separators=(",", ":")) + "\n"


def introduce(agent: int, ranks: int, world: int, now_s: float) -> str:
    """What an agent says when it starts."""
    node = f"node{agent:04d}"
    marks = dict.fromkeys(("imports_done", "process_groups_ready", "checkpoint_loaded"), 0.0)
    out = [line({"t": "hello", "n": node, "pid": 1000, "v": 1})]
    for rank in range(agent * ranks, (agent + 1) * ranks):
        out.append(
            line(
                {"t": "rank", "n": node, "rank": rank, "pid": 2000 + rank, "step_id": "0", "world": world, "at": now_s}
            )
        )
        told = {"marks": marks, "layout": {"dp": world}, "first": [-1, 0.0]}
        out.append(line({"t": "marks", "n": node, "rank": rank, **told}))
    return "".join(out)


def progress(agent: int, ranks: int, step: int, phase: str) -> str:
    """An agent's word about all its ranks."""
    entries = [
        [rank, step, phase, 0.0, step, 2.3456789, 1.2345678, 600.0 if phase == "checkpoint" else None]
        for rank in range(agent * ranks, (agent + 1) * ranks)
    ]
    return line({"t": "p", "n": f"node{agent:04d}", "r": entries})


def timings(agent: int, ranks: int, step: int) -> str:
    """The times of the last five steps of all its ranks, sixteen a message."""
    entries = [
        [rank, n, 1.013579, 0.8 + (rank * 7 + n) % 13 / 1000, None]
        for rank in range(agent * ranks, (agent + 1) * ranks)
        for n in range(max(0, step - 4), step + 1)
    ]
    node = f"node{agent:04d}"
    return "".join(line({"t": "t", "n": node, "r": entries[at : at + 16]}) for at in range(0, len(entries), 16))


def main() -> None:
    """Speak until nobody listens."""
    agents, ranks, rate, phase = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    world, pause_s, step, part = agents * ranks, 1.0 / rate / SLICES, 0, 0
    for agent in range(agents):
        sys.stdout.write(introduce(agent, ranks, world, time.time()))
    sys.stdout.flush()
    due_s = time.monotonic()
    while True:
        if part == 0:
            step += 1
        speakers = range(part, agents, SLICES)
        told = "train" if phase == "timed" else phase
        sys.stdout.write("".join(progress(a, ranks, step, told) for a in speakers))
        if phase == "timed":
            sys.stdout.write("".join(timings(a, ranks, step) for a in speakers if (step + a) % 5 == 0))
        sys.stdout.flush()
        part = (part + 1) % SLICES
        due_s += pause_s
        readable, _, _ = select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))
        if readable and not sys.stdin.readline():
            return


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
