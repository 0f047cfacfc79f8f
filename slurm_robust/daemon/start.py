"""Puts a daemon together and runs it: one for each state folder."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_robust.config.site import Config, ConfigError
from slurm_robust.core.model import Mode
from slurm_robust.daemon.api.report_pages import ReportPages
from slurm_robust.daemon.api.state_publisher import StatePublisher
from slurm_robust.daemon.api.state_snapshot import Snapshots
from slurm_robust.daemon.context import DaemonContext
from slurm_robust.daemon.service import Daemon
from slurm_robust.daemon.store.journal import Journal
from slurm_robust.slurm.errors import SlurmMissingError
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


Settings = Callable[[], "tuple[Config, Mode]"]
"""Reads robust.yaml; raises `ConfigError`."""


async def run(settings: Settings, *, account: str, state_dir: Path, as_user: bool, config_path: str = "") -> None:
    """Run until SIGTERM or SIGINT; at a SIGHUP, begin a new daemon in this process with the settings of that time.

    The new daemon takes up open work as after a restart. `state_dir` stays.

    Raises:
        ConfigError: robust.yaml cannot be used at the start.
        StartError: another daemon uses this journal.
        JournalError: the journal cannot be used.
    """
    config, mode = settings()
    handle = lock(state_dir)
    journal = Journal.open(state_dir)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    if not os.isatty(0):  # a person's terminal that is closed ends the daemon
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    # Each thread of more would keep memory of its own from the large texts that it read once.
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    try:
        while True:
            context = DaemonContext(config, connect(config.slurm), journal, account=account, mode=mode)
            context.config_path = config_path
            daemon = Daemon(context, as_user=as_user)
            reread = asyncio.create_task(_reread(settings, asked, daemon))
            try:
                await _run_one(daemon, state_dir)
            finally:
                reread.cancel()
            if not daemon.replaced:
                break
            config, mode = reread.result()
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        journal.close()
        os.close(handle)


async def _run_one(daemon: Daemon, state_dir: Path) -> None:
    """Run a daemon, with what publishes its state, to its end."""
    if daemon.as_user:
        await daemon.run()
        return
    # `srobust status` of other users reads this state; they cannot read the journal.
    publisher = StatePublisher(daemon.context, state_dir, Snapshots(daemon))
    pages = ReportPages(daemon.context, state_dir)
    daemon.after_poll += [daemon.notifier.tick, publisher.tick, pages.tick]
    try:
        await daemon.run()
    finally:
        await pages.close()
        await publisher.close()
        await daemon.notifier.close()


async def _reread(settings: Settings, asked: asyncio.Event, daemon: Daemon) -> tuple[Config, Mode]:
    """Return the new settings once they are asked for and can be used; the daemon is then ended for another one."""
    context = daemon.context
    while True:
        await asked.wait()
        asked.clear()
        try:
            found = await asyncio.to_thread(settings)
            connect(found[0].slurm)
        except (ConfigError, SlurmMissingError) as error:
            text = f"robust.yaml has changed and cannot be used, the settings of before hold ({error})"
            context.alert("daemon.reload", text)
            context.trouble("reload", f"{text}: mend it, then systemctl reload srobustd")
            continue
        context.info("daemon.reload", f"the settings are read again: mode {found[1].value}")
        daemon.replace()
        return found
