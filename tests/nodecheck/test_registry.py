from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_robust.nodecheck import registry
from slurm_robust.nodecheck.context import STAGES
from slurm_robust.nodecheck.registry import CheckError


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_known_without_its_checks(stage: str) -> None:
    """What the registry leaves out of a stage is what the checks themselves do not name."""
    by_themselves = [name for name in registry.NAMES if stage in registry.get(name).stages]
    assert [check.name for check in registry.select(stage)] == by_themselves
    assert registry._NOT_IN[stage] == set(registry.NAMES) - set(by_themselves)


def test_a_stage_loads_no_check_that_it_does_not_run() -> None:
    """Each costs a prolog about half a millisecond."""
    code = (
        "import sys\nfrom slurm_robust.nodecheck import registry\nran = {c.name for c in registry.select('prolog')}\n"
        "loaded = {m.rpartition('.')[2] for m in sys.modules if m.startswith('slurm_robust.nodecheck.checks.')}\n"
        "print(*sorted(loaded - ran - {'gpu', 'host', 'network'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_what_is_named_is_what_runs() -> None:
    """`only` takes checks of any stage, in the order of reports; `disable` wins; a wrong name is told."""
    assert [check.name for check in registry.select("prolog", ["chrony", "xid"])] == ["xid", "chrony"]
    assert [check.name for check in registry.select("prolog", ["chrony", "xid"], ["xid"])] == ["chrony"]
    assert "shm" not in [check.name for check in registry.select("prolog", (), ["shm"])]
    with pytest.raises(CheckError, match="did you mean chrony"):
        registry.select("prolog", (), ["chroni"])
