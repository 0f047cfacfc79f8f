"""What a training loop calls: copy now, write later, resume from the newest that is whole."""

from __future__ import annotations

import secrets
import string
import sys
import time
import weakref
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.health.health_log import HealthLog
from slurm_robust.checkpoint.saving.backup import setup
from slurm_robust.checkpoint.saving.rank import buffer_sync, deferred_copies
from slurm_robust.checkpoint.saving.rank.bindings import Bindings
from slurm_robust.checkpoint.saving.rank.buffers import Buffers, Retention
from slurm_robust.checkpoint.saving.rank.persister_link import PersisterLink
from slurm_robust.checkpoint.saving.rank.save_plan import FlatState, RankGroup, SavePlan, agree
from slurm_robust.checkpoint.saving.rank.synchronous import SynchronousWriter
from slurm_robust.checkpoint.saving.rank.termination import TerminationSignals
from slurm_robust.checkpoint.saving.rank.training_state import collect_untouched
from slurm_robust.checkpoint.saving.restart.choose import Resume, resume
from slurm_robust.checkpoint.saving.shared import file_writer, local_files
from slurm_robust.checkpoint.saving.shared.image import Note
from slurm_robust.checkpoint.saving.shared.tiers import SHARED, TierSchedule

_RUN_LETTERS = 6


class Checkpointer:
    """Saves and loads the state of a training; all ranks make one, and call its methods together.

    Args:
        directory: Where checkpoints go; all nodes must see it.
        keep: Sealed checkpoints that stay; 0 for all.
        asynchronous: Copy in the step and write outside of it, from two buffers in shared memory. False: write in the
            step, without buffers.
        overlap: What a save does while both buffers are still being written: `wait` for one, or `skip` and say so.
        until_update: Copy parameters, and what optimizers keep of them, while the next step computes: a save returns
            before that has ended, and an optimizer of `state` waits for it when its `step()` is called. For programs
            that change them in no other way; one that replays an optimizer as a CUDA graph does.
        rng: Save the random generators' states of each rank, too.
        backups: On how many other nodes each rank's copies are kept, too, in memory of the same size: 0, 1 or 2. None:
            where their memory outlives the training, which it does under `srobust run`, two on three nodes or more if
            all have the memory, else one.
        layout: Sizes of the parallel groups, those of neighbouring ranks first: `{"tp": 8, "dp": 4, "pp": 2}`. A backup
            stands where none of its rank's groups is. None: as the tensors' meshes tell.
        backup_bytes_per_s: What a node sends for backups, at most; 0 for no bound.
        local: A folder on each node's own disk, which saves go to, too.
        keep_local: Saves that stay there (two more while others may still write); 0 for all.
        every: Steps between two saves to `memory`, `local` and `shared`, each 1 where it is not named; then call `save`
            after each step, and it does nothing where nothing is due.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 3,
        asynchronous: bool = True,
        overlap: Literal["wait", "skip"] = "wait",
        until_update: bool = False,
        rng: bool = True,
        backups: int | None = None,
        layout: Mapping[str, int] | None = None,
        backup_bytes_per_s: float = 1 << 30,
        local: str | Path | None = None,
        keep_local: int = 2,
        every: Mapping[str, int] | None = None,
    ) -> None:
        if overlap not in ("wait", "skip"):
            raise ValueError(f"overlap is {overlap!r}: say 'wait' or 'skip'")
        if local is not None and not asynchronous:
            raise ValueError("a local folder is written from the buffers: it needs asynchronous=True")
        if keep < 0:
            raise ValueError(f"keep is {keep}: 0 keeps all, 1 or more so many")
        self.directory = Path(directory).absolute()
        self.keep, self.asynchronous, self.overlap, self.rng = keep, asynchronous, overlap, rng
        self.ranks = RankGroup()
        letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(_RUN_LETTERS))
        self.run: str = self.ranks.told(letters)
        self.link = PersisterLink(self.run, self.directory, self.ranks.rank)
        self.last_sealed: int | None = None
        """The last step that this rank knows to be sealed."""
        self.failures: list[str] = []
        """What went wrong with saves of this run, each a sentence."""
        self.backups: setup.Backups = ()
        """Rank → the ranks on whose nodes its copies are kept, too; empty where they are not."""
        self.stopping = False
        """A signal given to `save_on` has come, and the last save was made; the same on all ranks."""
        self.resumed: Resume | None = None
        """What `load_latest` chose, and where from."""
        self._health: HealthLog | None = None
        self._plan: SavePlan | None = None
        self._signature = 0
        self._buffers: Buffers | None = None
        self._bindings: Bindings | None = None
        disk = str(local_files.root(Path(local), self.directory)) if local is not None else ""
        retention = Retention(keep, disk, keep_local)
        self._wish = setup.SetupOptions(retention, setup.asked(backups), layout, backup_bytes_per_s)
        self._schedule = TierSchedule(every, local=local is not None)
        self._resumed = setup.ResumedFrom()
        self._leaving: TerminationSignals | None = None
        self._hook: RemovableHandle | None = None
        if until_update and asynchronous:
            # Of all optimizers: the one in `state` may be a wrapper, whose own step() is none of torch's.
            finish = weakref.WeakMethod(self._finish_copy)
            self._hook = register_optimizer_step_pre_hook(lambda *_: call() if (call := finish()) else None)
        self._saves = 0
        self._times: dict[int, int] = {}

    # -- saving ------------------------------------------------------------------------------------------------

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Make the plan and the buffers now, and not in the first save.

        Raises:
            CheckpointError: they do not fit the node's or the step's memory, or the state cannot be saved.
        """
        self._ready(state)

    def observe(self, step: int, *, loss: float | None = None, grad_norm: float | None = None) -> str:
        """Tell what a step came to, so that it is known which checkpoints are healthy; at each step, or now and then.

        Python numbers; anything else counts as not told, and is never waited for. All ranks may call it, rank 0's
        counts.

        Returns:
            What is bad about it, on rank 0; empty where nothing is.
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

        Asynchronous: returns when the state is copied; what becomes of the copy is told by the next save, and `wait`.
        A save that fails says so on stderr, and training goes on.

        Args:
            step: The last step that `state` includes.
            state: Name → model, optimizer, anything with `state_dict` and `load_state_dict`, tensors, plain values.
                What differs on each rank stands in a `PerRank`.
            loss: As in `observe`, of that step.
            grad_norm: The same.

        Returns:
            True: it is copied (asynchronous), or sealed. False: it was not due, skipped, or failed; the same on all
            ranks.

        Raises:
            CheckpointError: at the first save, or when the state has changed: as `prepare`.
        """
        if loss is not None or grad_norm is not None:
            self.observe(step, loss=loss, grad_norm=grad_norm)
        self._finish_copy()
        self._hear()
        leaving = self._asked_to_leave()
        tiers = self._schedule.all if leaving else self._schedule.due(step)
        if not tiers or (not self.asynchronous and SHARED not in tiers):
            return False
        if self._health is not None:
            self._health.write()  # what is removed after this save depends on it
        if self._buffers is not None and (self.overlap == "wait" or leaving):
            # No rank gives its older copy up while another one's newer is on one node only.
            buffer_sync.wait(self._buffers, self.ranks, self._hear)
        contents = self._ready(state)
        if self._buffers is not None and self.overlap == "skip" and not leaving:
            (busy,) = self.ranks.most(int(self._buffers.busy()))
            if busy:
                self._say(f"step {step} is not saved: both buffers are still being written")
                return False
        self._saves += 1
        again = self._times[step] = self._times.get(step, -1) + 1
        note = Note(
            f"{self.run}-{self._saves}", step, file_writer.folder_name(step, self.run, again), time.time(), tiers
        )
        self._schedule.saved(step, tiers)
        if self._buffers is None:
            self.stopping = leaving
            return self._write(note, contents)
        try:
            self._buffers.wait_free()
            may_wait = deferred_copies.may_wait(state, contents) if self._hook is not None and not leaving else None
            self._buffers.copy(contents, note, may_wait)
        except (CheckpointError, RuntimeError) as error:
            self._failed(step, str(error))
            return False
        return self._left(step) if leaving else True

    def _finish_copy(self) -> None:
        """Somebody may be about to change what is still being copied."""
        if self._buffers is not None and (note := self._buffers.copying) is not None:
            try:
                self._buffers.finish()
            except (CheckpointError, RuntimeError) as error:
                self._failed(note.step, str(error))

    def save_on(self, *signals: int, within_s: float = 25.0) -> None:
        """Make the next call of `save` the last one, once one of these signals has come to any rank.

        That save is due in all tiers, waits until it is sealed, and leaves `stopping` True: end the loop then. All
        ranks call this, in their main threads; each call of `save` then costs one small reduction, so call it after
        each step, with `every`. Nothing else happens in a signal's handler; a handler from before is still called.

        Args:
            signals: SIGTERM, which Slurm sends KillWait before SIGKILL; what `--signal` names.
            within_s: From the signal to the end, at most; Slurm's KillWait is 30 s where a site has not changed it.
        """
        self._leaving = TerminationSignals(signals, within_s)

    def _asked_to_leave(self) -> bool:
        if self._leaving is None or self.stopping:
            return False
        (asked,) = self.ranks.most(int(bool(self._leaving.asked)))
        return bool(asked)

    def _left(self, step: int) -> bool:
        """Wait for the last save, as long as there is time; whether it is sealed."""
        assert self._leaving is not None
        self.stopping = True
        sealed = self.wait(self._leaving.left_s) == step
        if self._leaving.asked:
            end = "sealed" if sealed else "not sealed in time: what is in memory is still being written"
            self._say(f"{self._leaving.asked} came: step {step} is saved on the way out, {end}")
        return sealed

    def _ready(self, state: Mapping[str, Any]) -> list[torch.Tensor | bytes]:
        """What is to be copied, in the plan's order; the plan is made anew where it does not fit any more."""
        flat = self._bindings.flat(state) if self._bindings is not None else None
        collected: FlatState | None = None
        contents: list[torch.Tensor | bytes] | None = None
        if flat is None:
            collected = self._collected(state)
            if self._plan is not None and collected.signature() == self._signature:
                flat = collected.flat
        if flat is not None:
            contents = self._plan.contents(flat) if self._plan is not None else None
        (changed,) = self.ranks.most(int(contents is None))
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
        resumed, self._resumed = self._resumed, setup.ResumedFrom()
        groups = setup.axes(collected.flat, self.ranks.world_size)
        try:
            arranged = setup.arrange(self.link, self._plan, self.ranks, self._wish, groups=groups, resumed=resumed)
        except CheckpointError:
            self._plan = None
            raise
        self._buffers, self.backups = arranged.buffers, arranged.backups
        if arranged.fewer and self.ranks.rank == 0:
            self._say(arranged.fewer)
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in collected.flat.values()):
            why = self._buffers.register()
            if why:
                self._say(f"copies from GPUs take longer than they need to: {why}")

    def _write(self, note: Note, contents: list[torch.Tensor | bytes]) -> bool:
        """Write in the step."""
        assert self._plan is not None
        failure = SynchronousWriter(self.directory, self.ranks, self.keep, self._say).write(self._plan, note, contents)
        if failure:
            self._failed(note.step, failure)
            return False
        self.last_sealed = note.step
        return True

    # -- what became of it -------------------------------------------------------------------------------------

    def wait(self, timeout_s: float = 600.0) -> int | None:
        """Wait until all copies are written and sealed, or have failed; all ranks call it.

        Returns:
            The last step of this run that is sealed, the same on all ranks; None where none is.
        """
        self._finish_copy()
        if self._buffers is not None:
            until_s = time.monotonic() + timeout_s
            failure = buffer_sync.wait(self._buffers, self.ranks, self._hear, until_s, written=True)
            if failure:
                self._say(f"what was copied last may not be written: {failure}")
            self._hear()
        self.last_sealed = self.ranks.told(self.last_sealed)
        return self.last_sealed

    def _hear(self, timeout_s: float = 0.0) -> None:
        """Take the persister's news of earlier saves."""
        if not self.link.alive:
            return
        for told in self.link.news(timeout_s):
            if told.get("t") == "word":
                self._say(str(told["text"]))
                continue
            if told["warning"]:
                self._say(str(told["warning"]))
            if told["failure"]:
                self._failed(int(told["step"]), str(told["failure"]))
            else:
                self.last_sealed = max(self.last_sealed or 0, int(told["step"]))

    def _failed(self, step: int, why: str) -> None:
        self.failures.append(f"step {step}: {why}")
        self._say(f"step {step} is not saved, training goes on: {why}")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"slurm_robust.checkpoint: {text}\n")
        sys.stderr.flush()

    # -- loading -----------------------------------------------------------------------------------------------

    def load_latest(self, state: MutableMapping[str, Any]) -> int | None:
        """Load the newest checkpoint that is whole into `state`; all ranks get the same one.

        What a killed run has left in this node's memory comes first where it is newer than what is on the disk, and
        complete on all ranks. The number of ranks and their layout may be another one than when it was saved.

        Returns:
            Its step; None where there is none, and nothing was changed.

        Raises:
            CheckpointError: there is one, and it does not fit `state`, or nobody can say what there is.
        """
        self._finish_copy()
        self.resumed = resume(
            self.directory,
            state,
            self.ranks,
            self.link if self.asynchronous else None,
            local=self._wish.retention.local,
            rng=self.rng,
        )
        step = self.resumed.step
        self._resumed = setup.ResumedFrom(self.resumed.save_id, -1 if step is None else step)
        self._schedule.saved(self.resumed.step or 0, self._schedule.all)
        for text in self.resumed.notes:
            if self.ranks.rank == 0:
                self._say(text)
        return self.resumed.step

    def close(self) -> None:
        """Wait for what is being written, and let the persister go."""
        self.wait()
        if self._hook is not None:
            self._hook.remove()
        self.link.close()
        self._buffers = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
