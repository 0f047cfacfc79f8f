"""Sealing what a framework saved, in a thread beside the training; no error reaches the caller."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from slurm_robust.checkpoint.demotion import DEMOTED_NAME
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.integrations import group
from slurm_robust.checkpoint.seals import SEAL_NAME, seal
from slurm_robust.checkpoint.verification import VERIFIED_NAME


class Sealer:
    """Seals one checkpoint after the other in a thread; what is not done when the program ends is waited for.

    Args:
        background: False: `seal` returns when it is sealed.
    """

    def __init__(self, *, background: bool = True) -> None:
        self._pool = ThreadPoolExecutor(1, "srobust-seal") if background else None
        self._open: list[Future[bool]] = []

    def seal(self, path: str | Path, step: int | None = None) -> None:
        """Seal the checkpoint at `path`, which is complete; called by one rank. See `checkpoint.seal` for `step`."""
        path = Path(path)
        if self._pool is None:
            _seal(path, step)
            return
        self._open = [one for one in self._open if not one.done()]
        try:
            self._open.append(self._pool.submit(_seal, path, step))
        except RuntimeError:  # the interpreter is ending and takes no more work for threads
            _seal(path, step)

    def wait(self) -> None:
        """Return when all is sealed that was given so far."""
        wait(self._open)


def seal_saved(path: str | Path, step: int | None = None) -> None:
    """Seal what all ranks have just saved to `path`; all of them call it, rank 0 seals, in a thread.

    `path` may be what the framework's own save returned; with None nothing is done.
    """
    if not path:
        return
    group.wait_for_all()
    if group.rank() == 0:
        _shared().seal(path, step)


_sealer: list[Sealer] = []


def _shared() -> Sealer:
    if not _sealer:
        _sealer.append(Sealer())
    return _sealer[0]


def _seal(path: Path, step: int | None) -> bool:
    try:
        seal(path, step)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"slurm_robust.checkpoint: not sealed, training goes on: {error}\n")
        return False
    if path.is_file():
        _drop_orphans(path.parent)
    return True


def _drop_orphans(folder: Path) -> None:
    """Seals beside single files that the framework has removed since."""
    for name in (SEAL_NAME, DEMOTED_NAME, VERIFIED_NAME):
        for left in folder.glob(f"*.{name}"):
            if not left.with_name(left.name.removesuffix(f".{name}")).exists():
                with contextlib.suppress(OSError):
                    left.unlink()
