"""Puts a daemon together and runs it: one for each state folder."""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_robust.config import Config
from slurm_robust.daemon.api.report_pages import ReportPages
from slurm_robust.daemon.api.state_publisher import StatePublisher
from slurm_robust.daemon.api.state_snapshot import Snapshots
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.model import Mode
from slurm_robust.slurm.factory import connect

THREADS = 2
"""Calls to Slurm are made one after the other; a second thread is there for what else has to wait."""


class StartError(Exception):
    """The daemon cannot start here; says why, and what to do."""


def lock(state_dir: Path) -> int:
    """Make sure that no other daemon uses this journal; the lock ends with the process.

    Raises:
        StartError: another one runs.
    """
    path = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}; choose another daemon.state_dir, or --state-dir") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise StartError(f"{path}: another daemon uses this journal (systemctl status srobustd)") from None
    return handle


async def run(
    config: Config, *, account: str, mode: Mode, state_dir: Path, as_user: bool, config_path: str = ""
) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        StartError: another daemon uses this journal.
        JournalError: the journal cannot be used.
    """
    handle = lock(state_dir)
    journal = Journal.open(state_dir)
    try:
        context = DaemonContext(config, connect(config.slurm), journal, account=account, mode=mode)
        context.config_path = config_path
        daemon = Daemon(context, as_user=as_user)
        publisher = pages = None
        if not as_user:
            # `srobust status` of other users reads this state; they cannot read the journal.
            publisher = StatePublisher(context, state_dir, Snapshots(daemon))
            pages = ReportPages(context, state_dir)
            daemon.after_poll += [daemon.notifier.tick, publisher.tick, pages.tick]
        # Each thread of more would keep memory of its own from the large texts that it read once.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        try:
            await daemon.run()
        finally:
            if publisher is not None and pages is not None:
                await pages.close()
                await publisher.close()
                await daemon.notifier.close()
    finally:
        journal.close()
        os.close(handle)
