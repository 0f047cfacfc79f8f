from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_stage import AgentStage


@pytest.fixture
def stage() -> Iterator[AgentStage]:
    """A stage that is cleared at the end."""
    made = AgentStage()
    yield made
    made.end()
