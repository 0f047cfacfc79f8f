"""Seals what a framework saved, in a thread beside the training; no error is raised to the caller."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from slurm_robust.checkpoint.base.checkpoint_files import DEMOTED_NAME, SEAL_NAME, VERIFIED_NAME
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.integrations import group
from slurm_robust.checkpoint.store import shared_seal
from slurm_robust.checkpoint.store.seals import seal


class Sealer:
    """Seals one checkpoint after the other in a thread; the program's end waits for it.

    Args:
        background: False: `seal` and `saved` return when the checkpoint is sealed.
    """

    def __init__(self, *, background: bool = True) -> None:
        self._pool = ThreadPoolExecutor(1, "srobust-seal") if background else None
        self._open: list[Future[None]] = []

    def begin(self, path: str | Path) -> None:
        """Prepare a save to `path`; every rank calls it before the last barrier of that save."""
        node = group.node()
        if node is not None and node.number:
            shared_seal.forget(Path(path), node.number)

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """Seal after that barrier; every rank calls it. Each node's first rank digests its share, rank 0 seals."""
        node, path = group.node(), Path(path)
        if group.rank() == 0:
            self.seal(path, step, nodes=node.nodes if node is not None else 1)
        elif node is not None and node.number:
            self._do(lambda: shared_seal.contribute(path, node.number, node.nodes))

    def seal(self, path: str | Path, step: int | None = None, *, nodes: int = 1) -> None:
        """Seal the checkpoint at `path`, which is complete; called by one rank.

        `step` as for `checkpoint.seal`; `nodes` digest it together, each by `saved`.
        """
        self._do(lambda: _seal(Path(path), step, nodes))

    def wait(self) -> None:
        """Wait until all seals are written."""
        wait(self._open)

    def _do(self, work: Callable[[], None]) -> None:
        def reporting() -> None:
            try:
                work()
            except (CheckpointError, OSError) as error:
                sys.stderr.write(f"slurm_robust.checkpoint: not sealed, training continues: {error}\n")

        self._open = [one for one in self._open if not one.done()]
        try:
            if self._pool is not None:
                self._open.append(self._pool.submit(reporting))
                return
        except RuntimeError:  # the interpreter is ending and starts no more work in threads
            pass
        reporting()


def seal_saved(path: str | Path | None, step: int | None = None) -> None:
    """Seal what all ranks have just saved to `path`; all of them call it. Digests are computed in a thread.

    `path` may be the return value of the framework's own save; None does nothing.
    """
    if path:
        _shared().begin(path)
        group.wait_for_all()
        _shared().saved(path, step)


_sealer: list[Sealer] = []


def _shared() -> Sealer:
    if not _sealer:
        _sealer.append(Sealer())
    return _sealer[0]


def _seal(path: Path, step: int | None, nodes: int) -> None:
    if nodes > 1 and path.is_dir():
        shared_seal.seal_together(path, nodes, step)
        return
    seal(path, step)
    if path.is_file():
        _drop_orphans(path.parent)


def _drop_orphans(folder: Path) -> None:
    """Remove seals of single files that the framework has removed."""
    for name in (SEAL_NAME, DEMOTED_NAME, VERIFIED_NAME):
        for left in folder.glob(f"*.{name}"):
            if not left.with_name(left.name.removesuffix(f".{name}")).exists():
                with contextlib.suppress(OSError):
                    left.unlink()
