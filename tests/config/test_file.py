"""Where the site's configuration is looked for, before anything is loaded that could read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config import file as config_file
from slurm_robust.config import site as config


def test_a_folder_that_may_not_be_looked_into_is_a_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch then runs under plain srun, with that sentence; it does not end."""
    monkeypatch.delenv("SROBUST_CONFIG", raising=False)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(Path, "exists", refused)
    monkeypatch.setattr(Path, "read_text", refused)
    assert config_file.find() == config_file.DEFAULT_PATH
    with pytest.raises(config.ConfigError, match="cannot be read"):
        config.load()
