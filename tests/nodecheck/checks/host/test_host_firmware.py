"""What the BIOS says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_trees import plant, said
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Status

MACHINE = {
    "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
    "/sys/class/dmi/id/product_name": "PowerEdge XE9680\n",
    "/sys/class/dmi/id/bios_version": "2.1.5\n",
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("pass", "firmware_as_wanted")),
        ({"bios_version": ["2.1.*"], "product_name": ["PowerEdge *"]}, ("pass", "firmware_as_wanted")),
        ({"bios_version": ["2.2.*", "3.*"]}, ("warn", "bios_version_differs")),
        ({"product_name": ["DGXH100"], "fail": True}, ("fail", "product_name_differs")),
    ],
)
def test_a_machine_is_held_against_what_the_site_expects(
    tmp_path: Path, options: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Nothing is expected unless the site says so; a difference drains only where it says that too."""
    plant(tmp_path, MACHINE)
    assert said("firmware", tmp_path, **options) == expected


def test_a_machine_without_dmi_is_no_fault(tmp_path: Path) -> None:
    """Many ARM boards and containers; also where one field only is missing."""
    assert said("firmware", tmp_path, bios_version=["2.*"], fail=True) == ("skip", "no_dmi")
    plant(tmp_path, {"/sys/class/dmi/id/sys_vendor": "QEMU\n"})
    assert said("firmware", tmp_path, bios_version=["2.*"], fail=True) == ("pass", "firmware_as_wanted")


def test_a_pattern_that_is_a_number_is_refused(tmp_path: Path) -> None:
    """YAML makes a number of an unquoted version: it would never match."""
    check, context = registry.get("firmware"), Context("n1", "full", tmp_path, tmp_path / "kmsg", tmp_path)
    with pytest.raises(registry.CheckError, match="quotes"):
        check.probe(context, check.settings({"bios_version": [2.1]}))


@given(st.dictionaries(st.sampled_from(["sys_vendor", "product_name", "bios_version", "bios_date"]), st.text()))
def test_whatever_a_vendor_writes_is_a_finding(facts: dict[str, str]) -> None:
    """Never a traceback."""
    check = registry.get("firmware")
    options = check.settings({"bios_version": ["2.*"]})
    assert check.judge(facts, options).status in (Status.PASS, Status.WARN, Status.SKIP)
