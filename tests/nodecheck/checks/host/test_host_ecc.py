from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import look, plant, said

MC = "/sys/devices/system/edac/mc"


def errors(ce: int | str, ue: int | str) -> dict[str, str]:
    """Two controllers; the second one's counters, and those of its module DIMM_B1."""
    return {
        f"{MC}/mc0/ce_count": "0\n",
        f"{MC}/mc0/ue_count": "0\n",
        f"{MC}/mc1/ce_count": f"{ce}\n",
        f"{MC}/mc1/ue_count": f"{ue}\n",
        f"{MC}/mc1/dimm0/dimm_label": "DIMM_A1\n",
        f"{MC}/mc1/dimm0/dimm_ce_count": "0\n",
        f"{MC}/mc1/dimm0/dimm_ue_count": "0\n",
        f"{MC}/mc1/dimm1/dimm_label": "DIMM_B1\n",
        f"{MC}/mc1/dimm1/dimm_ce_count": f"{ce}\n",
        f"{MC}/mc1/dimm1/dimm_ue_count": f"{ue}\n",
    }


@pytest.mark.parametrize(
    ("ce", "ue", "expected"),
    [
        (0, 0, ("pass", "memory_sound")),
        (100_000, 0, ("pass", "memory_sound")),  # an absolute count says nothing
        (0, 1, ("warn", "memory_uncorrected")),
        (0, 2, ("fail", "memory_uncorrected")),
        ("x", "-", ("pass", "memory_sound")),
        ("", "9" * 40, ("pass", "memory_sound")),
    ],
)
def test_ecc(tmp_path: Path, ce: int | str, ue: int | str, expected: tuple[str, str]) -> None:
    """One uncorrected error warns, a second one in the same boot fails; garbled counters say nothing."""
    assert said("ecc", plant(tmp_path, errors(ce, ue))) == expected


def test_the_module_is_named_by_what_is_printed_beside_its_slot(tmp_path: Path) -> None:
    """Whoever replaces it looks for `DIMM_B1`, not for a number of the kernel's."""
    assert "DIMM_B1" in look("ecc", plant(tmp_path, errors(0, 3))).sentence


def test_corrected_errors_add_up_over_several_looks(tmp_path: Path) -> None:
    """A slow drip is told once it comes to ten since the first look of the day; a new boot starts anew."""
    assert said("ecc", plant(tmp_path, errors(500, 0))) == ("pass", "memory_sound")
    assert said("ecc", plant(tmp_path, errors(506, 0))) == ("pass", "memory_sound")
    finding = look("ecc", plant(tmp_path, errors(512, 0)))
    assert (finding.status.value, finding.reason) == ("warn", "memory_corrected")
    assert "12 corrected" in finding.sentence
    assert "DIMM_B1" in finding.sentence
    again = plant(tmp_path, {**errors(600, 0), "/proc/sys/kernel/random/boot_id": "boot-2\n"})
    assert said("ecc", again) == ("pass", "memory_sound")


def test_without_a_driver_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    """Virtual machines and desktops count no memory errors."""
    assert said("ecc", plant(tmp_path, {})) == ("skip", "no_edac")
