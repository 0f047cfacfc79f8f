"""Creates the client that the site's configuration chooses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from slurm_robust.config.site import SlurmConfig

if TYPE_CHECKING:
    from slurm_robust.slurm.commands import CommandClient

BACKENDS = {
    "commands": ("slurm_robust.slurm.commands", "CommandClient"),
    "pyslurm": ("slurm_robust.slurm.pyslurm_backend", "PyslurmClient"),
}
"""name → (module, class); imported only when chosen."""


def connect(config: SlurmConfig) -> CommandClient:
    """Return the client that the configuration names; it does not call Slurm yet.

    A pyslurm that is not installed here, or does not fit, is named in a warning of `logging` at the first call that
    would need it; the commands are used instead.
    """
    module, name = BACKENDS[config.backend]
    client: CommandClient = getattr(importlib.import_module(module), name)(config)
    return client
