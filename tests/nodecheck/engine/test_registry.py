from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import STAGES
from slurm_robust.nodecheck.engine.registry import CheckError


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_known_without_its_checks(stage: str) -> None:
    """What the registry leaves out of a stage is what the checks themselves do not name."""
    by_themselves = [name for name in registry.NAMES if stage in registry.get(name).stages]
    assert [check.name for check in registry.select(stage)] == by_themselves
    assert set(registry._NOT_IN[stage]) == set(registry.NAMES) - set(by_themselves)


def test_a_stage_loads_no_check_that_it_does_not_run() -> None:
    """Each costs a prolog about half a millisecond."""
    code = (
        "import sys\nfrom slurm_robust.nodecheck.engine import registry\n"
        "ran = {c.name for c in registry.select('prolog')}\n"
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


def test_a_group_is_a_name_for_all_its_checks() -> None:
    """`gpu`, `host`, `network` and `torch` stand for the checks of that folder, in `only` and in `disable`."""
    for group in ("gpu", "host", "network", "torch"):
        of_group = [name for name in registry.NAMES if registry.GROUP_OF[name] == group]
        assert [check.name for check in registry.select("prolog", [group])] == of_group
        left = [check.name for check in registry.select("full", (), [group])]
        assert left == [name for name in registry.NAMES if name not in of_group]
    mixed = [check.name for check in registry.select("full", ["torch", "shm"], ["matmul"])]
    assert mixed == ["shm", "bandwidth", "collective"]
    assert not set(registry.GROUPS) & set(registry.NAMES), "one name, one meaning"


def test_a_mistyped_group_is_told() -> None:
    """What is near is offered; where nothing is, every group and every check."""
    with pytest.raises(CheckError, match="no check is called 'netwrok': did you mean network"):
        registry.select("full", ["netwrok"])
    with pytest.raises(CheckError, match="and their groups: gpu, host, network, torch"):
        registry.select("full", ["qqqq"])


def test_options_belong_to_a_check() -> None:
    """A group has none of its own: the message names that, and what to do."""
    with pytest.raises(CheckError, match="'gpu' is a group of checks"):
        registry.require("gpu")
