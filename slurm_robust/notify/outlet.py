"""Hands messages over, in a process that has no right to Slurm.

It reads messages on its input, and tells on its output what came of them. A line of its input is one JSON object: first
the settings, then messages; a line of its output is one `Delivery`. It reads the secrets, loads every module that it
needs, gives up root, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

import aiohttp
import msgspec

from slurm_robust.config.notify import NotifyConfig
from slurm_robust.notify.alert import Delivery, Letter, OutletSettings
from slurm_robust.notify.delivery import Address, deliver, rehearse

LINE_LIMIT_BYTES = 1024 * 1024
AT_ONCE = 32
"""Messages under way; further ones are read later."""


async def serve(drop_rights: Callable[[str], None], output: BinaryIO) -> None:
    """Hand over what comes, until the input ends."""
    reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = msgspec.json.decode(await reader.readline(), type=OutletSettings)
    config = msgspec.convert(first.notify, NotifyConfig)
    addresses = {target.name: Address.of(target, config.sendmail) for target in config.targets}
    async with aiohttp.ClientSession(trust_env=False, auto_decompress=False) as session:
        await rehearse(session)
        drop_rights(config.user)
        room, tasks = asyncio.Semaphore(AT_ONCE), set[asyncio.Task[None]]()

        async def one(letter: Letter) -> None:
            async with room:
                address = addresses.get(letter.target)
                if address is None:
                    done = Delivery(letter.id, letter.target, ok=False, final=True, message="there is no such target")
                else:
                    done = await deliver(address, letter, session, time.time)
            output.write(msgspec.json.encode(done) + b"\n")
            output.flush()

        while line := await reader.readline():
            task = asyncio.create_task(one(msgspec.json.decode(line, type=Letter)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
