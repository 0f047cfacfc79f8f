"""How fast is the dashboard of a large site, how soon does it show a change, and what does it take?

    python benchmarks/dashboard.py [--json] [--quick] [--nodes 1000,10000] [--watching 64]

The HTTP side runs as the daemon starts it, and is fed snapshots of so many nodes through its pipe, one of which changes
each time. `page` is the first page from request to last byte, half a second after a snapshot. `change` is the time from
the writing of a snapshot to the event, with so many who watch. Takes a minute; needs no Slurm.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from lib import Report, Spread, Target, machine, show_table, spread
from many_nodes import memory_mib
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from snapshots import stormy  # the tests' own made-up cluster

from slurm_robust.daemon.api.state_lines import Snapshot, encode

_PAGE_S, _CHANGE_S = 0.050, 1.0


class HttpSide:
    """`srobust daemon http`, fed as the daemon feeds it."""

    def __init__(self, process: asyncio.subprocess.Process, base: str, session: aiohttp.ClientSession) -> None:
        self.process, self.base, self.session = process, base, session

    async def feed(self, line: bytes) -> float:
        """Write this snapshot, and tell when that was begun."""
        began_s = time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        await self.process.stdin.drain()
        return began_s

    async def page_s(self) -> tuple[float, int]:
        """How long the first page takes, and its bytes on the way."""
        began_s = time.monotonic()
        async with self.session.get(self.base, auto_decompress=False) as response:
            return (time.monotonic() - began_s, len(await response.read()))

    async def seen_s(self, response: aiohttp.ClientResponse) -> float:
        """When the next change has come to one who watches."""
        async for line in response.content:
            if line.startswith(b"event: change"):
                return time.monotonic()
        raise RuntimeError("the HTTP side has let somebody go")


@contextlib.asynccontextmanager
async def http_side() -> AsyncIterator[HttpSide]:
    """The process, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [sys.executable, "-m", "slurm_robust.cli.main", "daemon", "http", f"--port={port}"]
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 22) as session:
            side = HttpSide(process, f"http://127.0.0.1:{port}/", session)
            for _ in range(200):
                with contextlib.suppress(aiohttp.ClientError):
                    await side.page_s()
                    break
                await asyncio.sleep(0.05)
            yield side
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def lines(nodes: int, times: int) -> list[bytes]:
    """Snapshots of one site, one node and one step further each, as the daemon writes them: the first one whole."""
    state = stormy(time.time(), nodes)
    rows = {row["name"]: row for row in state.pop("nodes")}
    known = {name: encode(row) for name, row in rows.items()}
    made = [Snapshot(state, known).whole() + b"\n"]
    for number, name in enumerate(list(rows)[: times - 1]):
        state["at_s"] = time.time()
        state["jobs"][0]["step"] = 500_000 + number
        now = {**known, name: encode({**rows[name], "node_state": "idle" if number % 2 else "seat"})}
        made.append((Snapshot(state, now).changes(known) or b"") + b"\n")
        known = now
    return made


async def measured(nodes: int, watching: int, times: int) -> dict[str, Any]:
    """All figures of one size."""
    again, soon, size = [], [], 0
    async with http_side() as side:
        for line in lines(nodes, times):
            await side.feed(line)
            await asyncio.sleep(0.5)
            for _ in range(5):
                took_s, size = await side.page_s()
                again.append(took_s * 1000)
        all_ = [await side.session.get(f"{side.base}events?page=home") for _ in range(watching)]
        await asyncio.sleep(1)
        for line in lines(nodes, times):
            began_s = await side.feed(line)
            seen = await asyncio.gather(*[side.seen_s(response) for response in all_])
            soon += [(at_s - began_s) * 1000 for at_s in seen]
            await asyncio.sleep(0.5)
        memory = memory_mib(side.process.pid)[2]
        for response in all_:
            response.close()
    found: dict[str, Spread | float | int | None] = {
        "page_ms": spread(again),
        "page_bytes": size,
        "change_ms": spread(soon),
        "memory_max_mib": round(memory, 1),
    }
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--watching", type=int, default=64)
    options = parser.parse_args()
    report = Report("dashboard", options.quick, notes=[], machine=machine())
    times = 3 if options.quick else 20
    sizes = [int(text) for text in options.nodes.split(",")]
    for nodes in sizes:
        report.figures[str(nodes)] = asyncio.run(measured(nodes, options.watching, times))
    largest = report.figures[str(max(sizes))]
    report.targets.append(Target(f"page of {max(sizes)} nodes", _PAGE_S * 1000, "ms", largest["page_ms"].median))
    worst = largest["change_ms"].max
    report.targets.append(Target(f"change, {options.watching} watch, the last one", _CHANGE_S * 1000, "ms", worst))
    if options.json:
        sys.stdout.write(report.to_json() + "\n")
        return
    console = Console()
    columns = ("what", *(f"{nodes} nodes" for nodes in sizes))
    keys = next(iter(report.figures.values())).keys()
    show_table(console, "Dashboard", columns, [(key, *(report.figures[str(n)][key] for n in sizes)) for key in keys])
    report.show(console)


if __name__ == "__main__":
    main()
