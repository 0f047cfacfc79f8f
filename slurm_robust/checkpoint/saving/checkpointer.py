"""The interface for a training loop: copy now, write later, resume from the newest complete checkpoint."""

from __future__ import annotations

import secrets
import string
import sys
import time
import weakref
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health.health_log import HealthLog
from slurm_robust.checkpoint.replay import REFUSED, in_replay
from slurm_robust.checkpoint.saving.rank import backup_setup, deferred_copies, synchronous
from slurm_robust.checkpoint.saving.rank.bindings import Bindings
from slurm_robust.checkpoint.saving.rank.buffers import Buffers, Retention
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import FlatState, RankGroup, SavePlan, agree
from slurm_robust.checkpoint.saving.rank.termination import TerminationSignals
from slurm_robust.checkpoint.saving.rank.training_state import collect_untouched
from slurm_robust.checkpoint.saving.restart.choose import Resume, resume
from slurm_robust.checkpoint.saving.shared import file_writer, local_files
from slurm_robust.checkpoint.saving.shared.image import Note
from slurm_robust.checkpoint.saving.shared.messages import Notice
from slurm_robust.checkpoint.saving.shared.options import BackupOptions, CopyOptions, TierOptions, grouped
from slurm_robust.checkpoint.saving.shared.tiers import SHARED, TierSchedule

_RUN_LETTERS = 6


class Checkpointer:
    """Saves and loads the state of a training; all ranks make one, and call its methods together.

    Args:
        directory: Where checkpoints are written; all nodes must see it.
        keep: Sealed checkpoints to keep; 0 for all.
        asynchronous: Copy in the step and write outside of it, from two buffers in shared memory. False: write in the
            step, without buffers.
        copying: The content of a save, and the time of its copy.
        backups: Copies in the memory of other nodes: how many (0, 1 or 2), or `BackupOptions`.
        tiers: Where saves go beside memory, and how often.
        deprecated: Keywords that are now in `CopyOptions`, `BackupOptions` and `TierOptions`; accepted for one version.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        asynchronous: bool = True,
        copying: CopyOptions | None = None,
        backups: BackupOptions | int | None = None,
        tiers: TierOptions | None = None,
        **deprecated: Any,
    ) -> None:
        copying, backups, tiers = grouped((copying, backups, tiers), deprecated)
        if tiers.local is not None and not asynchronous:
            raise ValueError("a local folder is written from the buffers: it needs asynchronous=True")
        if keep < 0:
            raise ValueError(f"keep is {keep}: 0 keeps all, 1 or more keeps that many")
        self.directory = Path(directory).absolute()
        self.keep, self.asynchronous, self.overlap, self.rng = keep, asynchronous, copying.overlap, copying.rng
        self.ranks = RankGroup()
        letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(_RUN_LETTERS))
        self.run: str = self.ranks.broadcast(letters)
        self.link = PersisterLink(self.run, self.directory, self.ranks.rank)
        self.last_sealed: int | None = None
        """The last step that this rank knows to be sealed."""
        self.failures: list[str] = []
        """The reasons why saves of this run failed, one sentence for each."""
        self.backups: backup_setup.Backups = ()
        """Rank → the ranks on whose nodes its backups are kept; empty if there are none."""
        self.stopping = False
        """A signal given to `save_on` was received, and the last save was made; the same on all ranks."""
        self.resumed: Resume | None = None
        """The checkpoint that `load_latest` chose, and its source."""
        self._health: HealthLog | None = None
        self._plan: SavePlan | None = None
        self._signature = 0
        self._buffers: Buffers | None = None
        self._bindings: Bindings | None = None
        disk = str(local_files.root(Path(tiers.local), self.directory)) if tiers.local is not None else ""
        self._setup = backup_setup.SetupOptions(Retention(keep, disk, tiers.keep_local), backups)
        self._schedule = TierSchedule(tiers.every, local=tiers.local is not None)
        self._signals: TerminationSignals | None = None
        self._hook: RemovableHandle | None = None
        if copying.until_update and asynchronous:
            # Of all optimizers: the one in `state` may be a wrapper with a step() of its own.
            finish = weakref.WeakMethod(self._finish_copy)
            self._hook = register_optimizer_step_pre_hook(lambda *_: call() if (call := finish()) else None)
        self._saves = 0
        self._saves_of: dict[int, int] = {}

    # -- saving ------------------------------------------------------------------------------------------------

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Make the plan and the buffers now instead of in the first save.

        Raises:
            CheckpointError: the buffers do not fit the memory of the node or step, or the state cannot be saved.
        """
        if not in_replay():
            self._ready(state)

    def observe(self, step: int, *, loss: float | None = None, grad_norm: float | None = None) -> str:
        """Record loss and gradient norm of a step, by which healthy checkpoints are found; at each step or at some.

        Values other than Python numbers are ignored, so that this never waits for a GPU. All ranks may call it; only
        rank 0 records.

        Returns:
            What is bad about the step, on rank 0; empty if nothing is.
        """
        if self.ranks.rank:
            return ""
        if self._health is None:
            self._health = HealthLog(self.directory)
        return self._health.observe(step, loss=loss, grad_norm=grad_norm)

    def save(
        self, step: int, state: Mapping[str, Any], *, loss: float | None = None, grad_norm: float | None = None
    ) -> bool:
        """Save the state as it is after `step`.

        Asynchronous: returns when the state is copied; the next save, and `wait`, report whether it was written.
        A save that fails is reported on stderr, and training continues.

        Args:
            step: The last step that `state` includes.
            state: Name → model, optimizer, anything with `state_dict` and `load_state_dict`, tensors, plain values.
                Wrap what differs on each rank in a `PerRank`.
            loss: The loss of that step, as in `observe`.
            grad_norm: The gradient norm of that step, as in `observe`.

        Returns:
            True: it is copied (asynchronous), or sealed. False: it was not due, skipped, or failed, or this is a replay
            (`SROBUST_REPLAY=1`), which saves nothing; the same on all ranks.

        Raises:
            CheckpointError: at the first save, or when the state has changed: as `prepare`.
        """
        if in_replay():
            self.stopping = self._signal_received() or self.stopping
            if not self.failures and self.ranks.rank == 0:
                self.failures.append(REFUSED)
                self._log(REFUSED)
            return False
        if loss is not None or grad_norm is not None:
            self.observe(step, loss=loss, grad_norm=grad_norm)
        self._finish_copy()
        self._receive()
        last = self._signal_received()
        tiers = self._schedule.all if last else self._schedule.due(step)
        if not tiers or (not self.asynchronous and SHARED not in tiers):
            return False
        if self._health is not None:
            self._health.write()  # pruning after this save depends on it
        if self._buffers is not None and (self.overlap == "wait" or last):
            # No rank may overwrite its older copy while another rank's newer one is on one node only.
            self._buffers.wait(self.ranks, self._receive)
        contents = self._ready(state)
        if self._buffers is not None and self.overlap == "skip" and not last:
            (busy,) = self.ranks.maximum(int(self._buffers.busy()))
            if busy:
                self._log(f"step {step} is not saved: both buffers are still being written")
                return False
        self._saves += 1
        again = self._saves_of[step] = self._saves_of.get(step, -1) + 1
        note = Note(
            f"{self.run}-{self._saves}", step, file_writer.folder_name(step, self.run, again), time.time(), tiers
        )
        self._schedule.saved(step, tiers)
        if self._buffers is None:
            self.stopping = last
            return self._write(note, contents)
        try:
            self._buffers.wait_free()
            may_wait = deferred_copies.may_wait(state, contents) if self._hook is not None and not last else None
            self._buffers.copy(contents, note, may_wait)
        except (CheckpointError, RuntimeError) as error:
            self._failed(step, str(error))
            return False
        return self._wait_for_last(step) if last else True

    def _finish_copy(self) -> None:
        """Wait for a copy that is still running: the caller may be about to change what it copies."""
        if self._buffers is not None and (note := self._buffers.copying) is not None:
            try:
                self._buffers.finish()
            except (CheckpointError, RuntimeError) as error:
                self._failed(note.step, str(error))

    def save_on(self, *signals: int, within_s: float = 25.0) -> None:
        """Make the next call of `save` the last one once any rank has received one of these signals.

        That save goes to all tiers, waits until it is sealed, and sets `stopping` to True: end the loop then. All
        ranks call this, in their main threads; each call of `save` then costs one small reduction, so call it after
        each step, with `every`. The signal handler does nothing else; a previously set handler is still called.

        Args:
            signals: SIGTERM, which Slurm sends KillWait before SIGKILL; the signal that `--signal` names.
            within_s: The longest time from the signal to the end; Slurm's KillWait is 30 s by default.
        """
        self._signals = TerminationSignals(signals, within_s)

    def _signal_received(self) -> bool:
        if self._signals is None or self.stopping:
            return False
        (received,) = self.ranks.maximum(int(bool(self._signals.received)))
        return bool(received)

    def _wait_for_last(self, step: int) -> bool:
        """Wait for the last save, as long as there is time; whether it is sealed."""
        assert self._signals is not None
        self.stopping = True
        sealed = self.wait(self._signals.left_s) == step
        if self._signals.received:
            end = "sealed" if sealed else "not sealed in time: the copy in memory is still being written"
            self._log(f"{self._signals.received} received: step {step} is the last save, {end}")
        return sealed

    def _ready(self, state: Mapping[str, Any]) -> list[torch.Tensor | bytes]:
        """Return the tensors and values to copy, in the plan's order; make a new plan if the old one no longer fits."""
        flat = self._bindings.flat(state) if self._bindings is not None else None
        collected: FlatState | None = None
        contents: list[torch.Tensor | bytes] | None = None
        if flat is None:
            collected = self._collected(state)
            if self._plan is not None and collected.signature() == self._signature:
                flat = collected.flat
        if flat is not None:
            contents = self._plan.contents(flat) if self._plan is not None else None
        (changed,) = self.ranks.maximum(int(contents is None))
        if changed:
            collected = collected or self._collected(state)
            self._agree(collected)
            contents = self._plan.contents(collected.flat) if self._plan is not None else None
        if collected is not None:
            self._bindings = Bindings(state, collected.flat, self.ranks.rank, rng=self.rng)
        assert contents is not None
        return contents

    def _collected(self, state: Mapping[str, Any]) -> FlatState:
        return FlatState(collect_untouched(state, self.ranks.rank, rng=self.rng), first=self.ranks.rank == 0)

    def _agree(self, collected: FlatState) -> None:
        """Make plan and buffers, all ranks together."""
        self._plan, self._signature = agree(collected, self.ranks), collected.signature()
        if not self.asynchronous:
            return
        self._buffers = None
        options, self._setup = self._setup, self._setup._replace(resumed=backup_setup.ResumedFrom())
        groups = backup_setup.axes(collected.flat, self.ranks.world_size)
        try:
            arranged = backup_setup.arrange(self.link, self._plan, self.ranks, options, groups)
        except CheckpointError:
            self._plan = None
            raise
        self._buffers, self.backups = arranged.buffers, arranged.backups
        if arranged.fewer and self.ranks.rank == 0:
            self._log(arranged.fewer)
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in collected.flat.values()):
            why = self._buffers.register()
            if why:
                self._log(f"copies from GPUs are slow: {why}")

    def _write(self, note: Note, contents: list[torch.Tensor | bytes]) -> bool:
        """Write in the step."""
        assert self._plan is not None
        failure, warning = synchronous.write(self.directory, self.ranks, self._plan, note, contents, keep=self.keep)
        if warning:
            self._log(warning)
        if failure:
            self._failed(note.step, failure)
            return False
        self.last_sealed = note.step
        return True

    # -- outcomes ----------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float = 600.0) -> int | None:
        """Wait until all copies are written and sealed, or have failed; all ranks call it.

        Returns:
            The last sealed step of this run, the same on all ranks; None if no step is sealed.
        """
        self._finish_copy()
        if self._buffers is not None:
            until_s = time.monotonic() + timeout_s
            failure = self._buffers.wait(self.ranks, self._receive, until_s, written=True)
            if failure:
                self._log(f"the last copy may not be written: {failure}")
            self._receive()
        self.last_sealed = self.ranks.broadcast(self.last_sealed)
        return self.last_sealed

    def _receive(self, timeout_s: float = 0.0) -> None:
        """Read how earlier saves ended."""
        if not self.link.alive:
            return
        for message in self.link.notifications(timeout_s):
            if isinstance(message, Notice):
                self._log(message.text)
                continue
            if message.warning:
                self._log(message.warning)
            if message.failure:
                self._failed(message.step, message.failure)
            else:
                self.last_sealed = max(self.last_sealed or 0, message.step)

    def _failed(self, step: int, why: str) -> None:
        self.failures.append(f"step {step}: {why}")
        self._log(f"step {step} is not saved, training continues: {why}")

    def _log(self, text: str) -> None:
        sys.stderr.write(f"slurm_robust.checkpoint: {text}\n")
        sys.stderr.flush()

    # -- loading -----------------------------------------------------------------------------------------------

    def load_latest(self, state: MutableMapping[str, Any]) -> int | None:
        """Load the newest complete checkpoint into `state`; all ranks get the same one.

        Copies that a killed run left in memory are preferred if they are newer than the files, and complete on all
        ranks. The number of ranks and their layout may differ from those that saved.

        Returns:
            The checkpoint's step; None if there is no checkpoint, and nothing was changed.

        Raises:
            CheckpointError: the checkpoint does not fit `state`, or the checkpoints cannot be listed.
        """
        self._finish_copy()
        self.resumed = resume(
            self.directory,
            state,
            self.ranks,
            # What a killed run left in memory is for the training, not for a replay.
            self.link if self.asynchronous and not in_replay() else None,
            local=self._setup.retention.local,
            rng=self.rng,
        )
        step = self.resumed.step
        resumed = backup_setup.ResumedFrom(self.resumed.save_id, -1 if step is None else step)
        self._setup = self._setup._replace(resumed=resumed)
        self._schedule.saved(self.resumed.step or 0, self._schedule.all)
        for text in self.resumed.notes:
            if self.ranks.rank == 0:
                self._log(text)
        return self.resumed.step

    def close(self) -> None:
        """Wait until all copies are written, and disconnect from the persister."""
        self.wait()
        if self._hook is not None:
            self._hook.remove()
        self.link.close()
        self._buffers = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
