from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import BOOT, write

from slurm_robust.nodecheck.checks.network import nic_log
from slurm_robust.nodecheck.engine import runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.sources import shared_kernel_log

WORDS = {
    "table_overflow": [
        "neighbour: arp_cache: neighbor table overflow!",
        "nf_conntrack: nf_conntrack: table full, dropping packet",
    ],
    "transmit_timeout": [
        "NETDEV WATCHDOG: ens10f0 (mlx5_core): transmit queue 3 timed out",
        "mlx5_core 0000:61:00.0 ens10f0: TX timeout detected",
        "ena 0000:00:05.0 eth0: Keep alive watchdog timeout.",
    ],
    "command_timeout": [
        "mlx5_core 0000:61:00.0: wait_func:1132:(pid 1): DCT(0x710) timeout. Will cause a leak of a command resource"
    ],
    "cable_error": ["mlx5_core 0000:61:00.0: Port module event[error]: module 0, Cable error, Bus stuck"],
    "overheated": [
        "mlx5_core 0000:61:00.0: temp_warn_event:175:(pid 0): High temperature on sensors with bit set 0 1",
    ],
    "power_insufficient": [
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
    ],
    "card_unhealthy": [
        "mlx5_core 0000:61:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count",
        "mlx5_core 0000:61:00.0: poll_health:751:(pid 0): Fatal error 3 detected",
        "mlx5_core 0000:61:00.0: Health issue observed, firmware internal error, severity(3) ERROR:",
        "mlx5_core 0000:61:00.0: health recovery flow aborted, PCI reads still not working",
    ],
}
HARMLESS = [
    "mlx5_core 0000:61:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:61:00.0: Port module event: module 0, Cable unplugged",
    "mlx5_core 0000:61:00.0: mlx5_cmd_out_err:808:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource",
    "mlx5_core 0000:13:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not advertised.",
    "mlx5_core 0000:63:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
    "mlx5_core 0000:61:00.0 ens10f0: Link up",
    "mlx5_core 0000:61:00.0: Health issue observed, firmware internal error, severity(6) INFO:",
    "mlx5_core 0000:61:00.0: mlx5_health_try_recover:330:(pid 9): starting health recovery flow",
    "mlx5_core 0000:61:00.0: firmware version: 28.41.1000",
    "python[4711]: mlx5_core 0000:61:00.0: Port module event[error]: I only say so",
    "IPv6: ADDRCONF(NETDEV_CHANGE): ens10f0: link becomes ready",
    "virbr0-calibrate: port 1(vnet0) entered disabled state",
]


def test_the_kernel_s_words_are_sorted() -> None:
    """Each known line has its kind and its card; plugging, linking and what users write have none."""
    for kind, lines in WORDS.items():
        for line in lines:
            assert list(nic_log.count([line])) == [kind], line
            assert any(word in line for word in nic_log._WORDS[kind]), line
    assert nic_log.count(HARMLESS) == {}
    assert nic_log.count(WORDS["card_unhealthy"])["card_unhealthy"]["cards"] == ["0000:61:00.0"]


@given(st.lists(st.text(max_size=200), max_size=10))
def test_any_words_are_sorted(lines: list[str]) -> None:
    """Whatever is logged, counting is total."""
    assert sum(entry["count"] for entry in nic_log.count(lines).values()) <= len(lines)


def test_trouble_warns_until_the_next_prolog_has_seen_it(tmp_path: Path) -> None:
    """A periodic look says it again, the prolog's is the last; what the site passes over is not said."""
    write(tmp_path, {"/kmsg": "".join(f"{lines[0]}\n" for lines in WORDS.values()), BOOT: "b1"})
    context = Context("n1", "periodic", tmp_path, tmp_path / "kmsg", tmp_path / "cache")

    def look(stage: str, ignore: list[str]) -> tuple[str, str]:
        options = {"nic_log": {"ignore": ignore}}
        finding = runner.run([nic_log.check], replace(context, stage=stage), options, 10.0).results[0].finding
        assert finding.remedy or finding.status.value == "pass"
        return finding.status.value, finding.reason

    assert look("periodic", []) == ("warn", "card_unhealthy")
    assert look("periodic", ["card_unhealthy"]) == ("warn", "power_insufficient")
    assert look("periodic", list(WORDS)) == ("pass", "quiet")
    assert look("prolog", []) == ("warn", "card_unhealthy")
    assert look("prolog", []) == ("pass", "quiet")


def test_a_storm_of_one_card_warns_in_time(tmp_path: Path) -> None:
    """8 MiB of one line are counted up to a limit; what else was said before it is still found."""
    storm = WORDS["power_insufficient"][0] + "\n"
    text = WORDS["cable_error"][0] + "\n" + storm * ((8 << 20) // len(storm) - 10)
    write(tmp_path, {"/kmsg": text, BOOT: "b1"})
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg")
    finding = runner.run([nic_log.check], context, {}, 60.0).results[0].finding
    assert (finding.status.value, finding.reason) == ("warn", "power_insufficient")
    assert f"power_insufficient ×{shared_kernel_log.MOST_LINES} or more" in finding.sentence
    assert finding.evidence["seen"]["cable_error"]["count"] == 1


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00mlx5_core", b"mlx5_core " * 5000])
def test_any_log_is_read(tmp_path: Path, data: bytes) -> None:
    """Empty, not UTF-8, one endless line; and none at all is nothing to look at."""
    (tmp_path / "kmsg").write_bytes(data)
    context = Context("n1", "full", tmp_path, tmp_path / "kmsg")
    assert runner.run([nic_log.check], context, {}, 10.0).results[0].finding.reason == "quiet"
    (tmp_path / "kmsg").unlink()
    assert runner.run([nic_log.check], context, {}, 10.0).results[0].finding.status.value == "skip"
