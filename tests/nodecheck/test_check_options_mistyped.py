"""`srobust check --list` refuses what is mistyped in a check's options, also deep within them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.site import ConfigError, parse
from slurm_robust.nodecheck.engine import registry
from slurm_robust.nodecheck.stages.command import EXIT_FIT, EXIT_USAGE, main

WELL = """
nodecheck:
  gpu_profiles: {My Board: {nvlinks: 4}}
  options:
    xid: {warn: [74]}
    filesystem: {mounts: [/home, {path: /scratch, type: lustre, writable: true, min_free_mb: 1}]}
    kernel_log: {ignore: [oom_kill], often: {io_error: 3}}
    disks: {expected: {"nvme*": 8}}
    services: {required: [munged, sshd.service]}
    settings: {sysctl: {kernel.numa_balancing: 0}, hugepages: {2048kB: 4}, cmdline: [iommu=pt], thp: madvise}
    swap: {expected: "off"}
    rdma_ports: {link_layer: {default: InfiniBand}, ignore: [mlx5_4/1]}
    rdma_rate: {min_gbps: {default: 200, mlx5_0: 99.5}}
    rdma_errors: {warn_per_hour: {symbol_error: 0}}
    rdma_firmware: {expected: {MT_0000000838: 28.41.1000}}
    bonding: {members: {default: 2}, mode: {bond0: 802.3ad}}
    network_sysctls: {minimum: {net.core.rmem_max: 16777216}, exact: {net.ipv4.tcp_rmem: 1 2 3}}
    gpudirect: {acs: "off", iommu: pt}
    gpu_mig: {mode: "off"}
"""


def listed(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and error of the command."""
    site = tmp_path / "robust.yaml"
    site.write_text(text)
    code = main(["--list", "--config", str(site)])
    return code, capsys.readouterr().err


def test_what_is_right_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every shape that the documents show, and every default."""
    assert listed(tmp_path, WELL, capsys) == (EXIT_FIT, "")
    for name in registry.NAMES:
        check = registry.get(name)
        check.require_sense({option: known.default for option, known in check.every_option().items()})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("filesystem: {mounts: [{path: /scratch, writeable: true}]}", "there is no key writeable (there are: path,"),
        ("filesystem: {mounts: [{pth: /scratch}]}", "names no path"),
        ("filesystem: {mounts: [{path: /scratch, min_free_mb: 1G}]}", "min_free_mb: '1G' does not fit"),
        ("filesystem: {mounts: [7]}", "7 is no str or dict"),
        ("xid: {warn: [foo]}", "xid.warn: 'foo' is no int"),
        ("ethernet: {interfaces: [{nme: eth0}]}", "ethernet.interfaces"),
        ("ethernet: {min_mbps: {eth0: fast}}", "eth0: 'fast' is no int or float"),
        ("kernel_log: {ignore: [oom_kil]}", "'oom_kil' is not a kind of message"),
        ("nic_log: {ignore: [overheat]}", "'overheat' is not one of table_overflow"),
        ("rdma_errors: {warn_per_hour: {symbol_eror: 1}}", "'symbol_eror' is not one of symbol_error"),
        ("rdma_ports: {link_layer: {default: infiniband}}", "'infiniband' is not one of InfiniBand, Ethernet"),
        ("gpu_mig: {mode: onn}", "'onn' is not one of on, off"),
        ("gpu_compute_mode: {mode: exclusive}", "'exclusive' is not one of default"),
        ("swap: {expected: none}", "'none' is not one of on, off"),
        ("settings: {modules: [a/b]}", "is not a name"),
        ("settings: {fail: [krnel]}", "is not one of kernel"),
        ("services: {required: ['a b']}", "is not a service's name"),
        ("scratch: {folders: [tmp]}", "is not an absolute path"),
        ("network_sysctls: {exact: {vm.swappiness: 1}}", "is not a setting below net"),
        ("controller_name: {hosts: ['a b']}", "is not a host's name"),
    ],
)
def test_what_is_mistyped_is_refused(
    tmp_path: Path, options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the place, and what there is instead."""
    code, said = listed(tmp_path, f"nodecheck: {{options: {{{options}}}}}", capsys)
    assert (code, words in said) == (EXIT_USAGE, True), said
    assert f"nodecheck.options.{options.partition(':')[0]}" in said


def test_a_profile_is_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A board's figures."""
    code, said = listed(tmp_path, "nodecheck: {gpu_profiles: {My Board: {nvlnks: 4}}}", capsys)
    assert code == EXIT_USAGE
    assert "gpu_profiles.My Board.nvlnks: no such key (there are: nvlinks," in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode: obsreve", "mode: Invalid enum value 'obsreve' (there are: observe, act)"),
        ("mode: off", "(there are: observe, act)"),
        ("quarantine: {claims: drian}", "(there are: quarantine, drain)"),
        ("nodetest: {tests: [in_node]}", "(there are: in-node, pairs, alignment)"),
        ("standby: {size: many}", "(there are: auto, a number)"),
        ("notify: {targets: [{name: a, kind: slak, url: 'http://x/'}]}", "(there are: slack, webhook, email)"),
    ],
)
def test_the_values_that_there_are_are_told(text: str, words: str) -> None:
    """Of keys that take only some words."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert words in str(refused.value)
