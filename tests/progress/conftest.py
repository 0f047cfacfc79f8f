from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType

import pytest
from progress_source import SOURCE


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A fresh copy of the module, as a process that just started has it."""
    monkeypatch.delenv("SROBUST_PROGRESS", raising=False)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    spec = importlib.util.spec_from_file_location("fresh_progress", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    if module._page is not None:
        os.close(module._page.fd)
