"""Creates the client that the site's configuration chooses."""

from __future__ import annotations

import importlib

from slurm_robust.config import SlurmConfig
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import SlurmMissingError

BACKENDS = {
    "commands": ("slurm_robust.slurm.commands", "CommandClient"),
    "pyslurm": ("slurm_robust.slurm.pyslurm_backend", "PyslurmClient"),
}
"""name → (module, class); imported only when chosen, since importing pyslurm already calls libslurm."""


def connect(config: SlurmConfig) -> SlurmClient:
    """The client that the configuration names; it does not call Slurm yet.

    Raises:
        SlurmMissingError: pyslurm was chosen and cannot be imported.
    """
    module, name = BACKENDS[config.backend]
    try:
        backend = getattr(importlib.import_module(module), name)
        client: SlurmClient = backend(config)
    except ImportError as error:
        raise SlurmMissingError(
            f"slurm.backend is {config.backend}, which cannot be imported here; install the {config.backend} that "
            "matches this Slurm's major.minor, or set slurm.backend: commands in robust.yaml",
            str(error),
        ) from error
    return client
