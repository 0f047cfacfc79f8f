"""What is read from /proc and /sys beside NVML: nvidia-peermem, Fabric Manager, whatever state the tree is in."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.checks.gpu import gpu_count, gpu_fabric, gpu_identity, gpu_p2p, gpu_peermem
from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Status
from slurm_robust.nodecheck.sources import pci as pci_source

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n"
NEW, OLD = "Linux version 6.8.0-45-generic (x@y)\n", "Linux version 5.4.0-190-generic (x@y)\n"


def tree(root: Path, files: dict[str, str]) -> Context:
    """A tree of files; a name that ends with a slash is a folder."""
    for name, text in files.items():
        path = root / name.strip("/")
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return Context("n1", root=root)


CARD = {"/sys/class/infiniband/mlx5_0/": "", "/sys/module/mlx5_ib/": ""}
DRIVER = "/proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        ({}, {}, ("skip", "no_driver")),
        ({**CARD, "/proc/version": OLD}, {"required": True}, ("skip", "no_driver")),
        ({DRIVER: CLOSED, "/proc/version": NEW}, {}, ("skip", "no_rdma")),
        ({DRIVER: CLOSED, "/proc/version": NEW, **CARD}, {}, ("warn", "no_gpudirect")),
        ({DRIVER: OPEN, "/proc/version": NEW, **CARD}, {}, ("pass", "dma_buf")),
        ({DRIVER: OPEN, "/proc/version": OLD, **CARD}, {}, ("warn", "no_gpudirect")),
        ({DRIVER: CLOSED, **CARD, "/sys/module/nvidia_peermem/": ""}, {}, ("pass", "peermem_loaded")),
        ({DRIVER: CLOSED, **CARD, "/sys/module/nv_peer_mem/": ""}, {"required": True}, ("pass", "peermem_loaded")),
        ({DRIVER: OPEN, "/proc/version": NEW, **CARD}, {"required": True}, ("fail", "peermem_missing")),
        ({DRIVER: CLOSED, "/sys/class/infiniband/rdmap0s1/": ""}, {}, ("skip", "no_rdma")),  # EFA has its own way
    ],
)
def test_peermem(tmp_path: Path, files: dict[str, str], options: dict[str, Any], expected: tuple[str, str]) -> None:
    """Needed only where the site says so, or where cards have no other way to the GPUs' memory."""
    report = runner.run([gpu_peermem.check], tree(tmp_path, files), {"gpu_peermem": options}, 10.0)
    finding = report.results[0].finding
    assert (finding.status.value, finding.reason) == expected
    assert finding.remedy or expected[0] in ("pass", "skip")


GPU = {"index": 0, "bus": "0000:1b:00", "minor": 0, "uuid": "u", "model": "NVIDIA A100-SXM4-80GB", "lost": ""}
A100S = {
    "state": "",
    "detail": "",
    "hung": {},
    "system": {},
    "stage": "full",
    "boot_id": "b",
    "at_s": 9e9,
    "kept": {},
    "gpus": [{**GPU, "profile": {}, "values": {}, "errors": {"fabric": "not_supported"}}] * 8,
}


@pytest.mark.parametrize(
    ("switches", "manager", "on_host", "options", "expected"),
    [
        (6, True, True, {}, ("pass", "fabric_joined")),
        (6, False, True, {}, ("fail", "no_fabric_manager")),  # NVSentinel#883: down for weeks, unseen
        (6, False, True, {"manager_needed": False}, ("warn", "no_fabric_manager")),
        (6, False, False, {}, ("pass", "fabric_joined")),  # in a container the host's processes are not seen
        (0, False, True, {}, ("skip", "no_fabric")),
    ],
)
def test_fabric_manager_where_gpus_say_nothing(
    switches: int, manager: bool, on_host: bool, options: dict[str, Any], expected: tuple[str, str]
) -> None:
    """A100 boards do not tell of the fabric: where there are NVSwitches their manager's process is needed."""
    facts = {**A100S, "switches": switches, "manager": manager, "on_host": on_host}
    finding = gpu_fabric.check.judge(facts, gpu_fabric.check.settings(options))
    assert (finding.status.value, finding.reason) == expected


def test_fabric_manager_is_found_among_processes(tmp_path: Path) -> None:
    """By the name that the kernel cuts to 15 characters."""
    context = tree(tmp_path, {"/proc/driver/nvidia-nvswitch/devices/0/": "", "/proc/77/comm": "nv-fabricmanage\n"})
    facts = gpu_fabric.probe(context, {})
    assert (facts["switches"], facts["manager"], facts["on_host"]) == (1, True, False)
    (tmp_path / "proc/77/comm").write_text("python\n")
    assert not gpu_fabric.probe(context, {})["manager"]


def config_space(kind: int, acs: int | None) -> bytes:
    """A PCIe port's config space: express capability at 0x40, ACS at 0x148 behind another extended one."""
    space = bytearray(4096)
    space[6], space[0x34] = 0x10, 0x50
    space[0x50:0x54] = bytes([0x01, 0x40, 0, 0])  # power management, then the express capability
    space[0x40:0x44] = bytes([0x10, 0x00, kind << 4 | 2, 0])
    space[0x100:0x104] = (0x0001 | 0x148 << 20).to_bytes(4, "little")
    if acs is not None:
        space[0x148:0x14C] = (0x000D).to_bytes(4, "little")
        space[0x14E:0x150] = acs.to_bytes(2, "little")
    return bytes(space)


def pci(root: Path, kind: int, acs: int | None, length: int = 4096, **files: str) -> Context:
    """A GPU below a bridge of this kind."""
    gpu = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0"
    made = {f"/{gpu}/vendor": "0x10de\n", f"/{gpu}/class": "0x030200\n", DRIVER: CLOSED, **files}
    context = tree(root, made)
    (root / gpu).parent.joinpath("config").write_bytes(config_space(kind, acs)[:length])
    (root / gpu).parents[1].joinpath("config").write_bytes(config_space(4, 0x1D)[:length])
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    devices.joinpath("0000:02:00.0").symlink_to("../../../../" + gpu)
    return context


@pytest.mark.parametrize(
    ("port", "files", "expected"),
    [
        ((6, 0x1D, 4096), {}, ("warn", "acs_redirects")),
        ((6, 0x01, 4096), {}, ("pass", "p2p_direct")),  # source validation alone sends nothing up
        ((6, None, 4096), {}, ("pass", "p2p_direct")),
        ((5, 0x1D, 4096), {}, ("skip", "no_switch")),
        ((6, 0x1D, 64), {}, ("skip", "not_root")),
        ((6, 0x1D, 4096), {"/proc/cpuinfo": "flags : fpu hypervisor"}, ("skip", "virtual")),
    ],
)
def test_acs(
    tmp_path: Path, port: tuple[int, int | None, int], files: dict[str, str], expected: tuple[str, str]
) -> None:
    """Only a switch's port above a GPU, on bare metal, that redirects what passes between peers."""
    context = pci(tmp_path, *port, **files)
    finding = gpu_p2p.check.judge(gpu_p2p.probe(context, {}), gpu_p2p.check.settings({}))
    assert (finding.status.value, finding.reason) == expected


@given(st.binary(max_size=600))
def test_any_config_space_is_read(config: bytes) -> None:
    """Truncated, or with capabilities that run in a circle."""
    for space in (config, config_space(6, 1)[: len(config)] + config, config + config_space(6, 1)[len(config) :]):
        assert -1 <= pci_source.port_type(space) <= 15
        assert pci_source.acs_control(space) is None or pci_source.acs_control(space) in range(65536)


def test_a_driver_whose_gpus_nvml_does_not_show() -> None:
    """Warns in what slurmd runs; inside a job hidden GPUs are the cgroup's doing."""
    facts = {**A100S, "gpus": [], "in_driver": ["0000:1b:00.0"], "job_gpus": [], "job_instances_missing": []}
    for stage, expected in (("periodic", ("warn", "gpu_hidden")), ("full", ("skip", "no_gpu"))):
        finding = gpu_identity.check.judge({**facts, "stage": stage}, gpu_identity.check.settings({}))
        assert (finding.status.value, finding.reason) == expected


FILES = [
    DRIVER,
    "/proc/version",
    "/proc/2/comm",
    "/proc/77/comm",
    "/proc/77/cmdline",
    "/proc/77/cgroup",
    "/proc/driver/nvidia/gpus/0000:1b:00.0/information",
    "/proc/driver/nvidia-nvswitch/devices/0/x",
    "/sys/class/infiniband/mlx5_0/x",
    "/sys/module/mlx5_ib/x",
    "/run/nvidia-persistenced/socket",
    "/proc/sys/kernel/random/boot_id",
]


@pytest.mark.parametrize("seed", range(25))
def test_any_tree_gives_findings_and_no_fault(tmp_path: Path, seed: int) -> None:
    """Missing, empty, binary and huge files, folders where files are expected, and the other way round."""
    chance = random.Random(seed)
    for name in FILES:
        path = tmp_path / name.lstrip("/")
        kind = chance.choice(["missing", "bytes", "empty", "folder", "link", "text"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                path.mkdir()
            elif kind == "link":
                path.symlink_to(path)
            elif kind != "missing":
                data = {"bytes": chance.randbytes(3000), "empty": b"", "text": OPEN.encode()[: chance.randrange(60)]}
                path.write_bytes(data[kind])
        except FileExistsError:
            continue
    checks = [check for check in registry.select("full") if check.name.startswith("gpu_")]
    for result in runner.run(checks, Context("n1", root=tmp_path), {}, 20.0).results:
        assert result.finding.reason not in ("probe_error", "judge_error"), result.finding
        assert result.finding.status is not Status.FAIL, result.finding


def bus(driver_of: dict[str, str]) -> dict[str, str]:
    """GPUs on the bus, and device files for all of them: they stay where a driver once was."""
    files = {DRIVER: CLOSED}
    for number, (name, driver) in enumerate(driver_of.items()):
        files |= {f"/sys/bus/pci/devices/{name}/vendor": "0x10de\n", f"/sys/bus/pci/devices/{name}/device": "0x2330\n"}
        files |= {f"/sys/bus/pci/devices/{name}/class": "0x030200\n", f"/dev/nvidia{number}": ""}
        if driver == "nvidia":
            files[f"/proc/driver/nvidia/gpus/{name}/information"] = ""
    return files


def link_drivers(root: Path, driver_of: dict[str, str]) -> None:
    """The links that a bound device has."""
    for name, driver in driver_of.items():
        if driver:
            (root / f"sys/bus/pci/devices/{name}/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


SISTERS = {"0000:1b:00.0": "nvidia", "0000:2b:00.0": "nvidia", "0000:9b:00.0": ""}


def test_a_gpu_without_a_driver_is_named_though_its_device_file_is_there(tmp_path: Path) -> None:
    """Device files outlast a driver that let go of its GPU; the sisters of the same model have theirs."""
    context = tree(tmp_path, bus(SISTERS))
    link_drivers(tmp_path, SISTERS)
    finding = runner.run([gpu_count.check], context, {}, 10.0).results[0].finding
    assert (finding.status.value, finding.reason) == ("warn", "gpu_unbound")
    assert "0000:9b:00.0" in finding.sentence


@pytest.mark.parametrize(
    ("name", "text"),
    [("driver_override", "vfio-pci\n"), ("physfn", ""), ("device", "0x1db6\n"), ("class", "0x068000\n")],
)
def test_a_gpu_that_is_meant_to_have_no_driver_is_no_trouble(tmp_path: Path, name: str, text: str) -> None:
    """One on its way to a guest, a virtual function, a board of another model, a bridge."""
    context = tree(tmp_path, bus(SISTERS))
    link_drivers(tmp_path, SISTERS)
    (tmp_path / "sys/bus/pci/devices/0000:9b:00.0" / name).write_text(text)
    assert runner.run([gpu_count.check], context, {}, 10.0).results[0].finding.reason == "gpus_present"


@pytest.mark.parametrize("driver", ["nvidia", "", "vfio-pci"])
def test_gpus_that_all_have_the_same_are_no_trouble(tmp_path: Path, driver: str) -> None:
    """All bound, none bound, all of a guest: no sister says that one is missing."""
    drivers = dict.fromkeys(SISTERS, driver)
    context = tree(tmp_path, bus(drivers))
    link_drivers(tmp_path, drivers)
    assert runner.run([gpu_count.check], context, {}, 10.0).results[0].finding.reason == "gpus_present"


@pytest.mark.parametrize(
    ("driver", "expected"),
    [("nvidia", "gpu_unbound"), ("", "gpu_unbound"), ("vfio-pci", "gpus_present"), ("pci-stub", "gpus_present")],
)
def test_a_gpu_that_was_given_to_a_guest_is_not_the_driver_s(tmp_path: Path, driver: str, expected: str) -> None:
    """Two GPUs on the bus, one with NVIDIA's driver; the other is a virtual machine's, or nobody's."""
    files = {
        DRIVER: CLOSED,
        "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "",
        f"/sys/bus/pci/drivers/{driver}/": "",
    }
    for name in ("0000:1b:00.0", "0000:9b:00.0"):
        files |= {f"/sys/bus/pci/devices/{name}/vendor": "0x10de\n", f"/sys/bus/pci/devices/{name}/class": "0x030200\n"}
    context = tree(tmp_path, files)
    if driver:
        (tmp_path / "sys/bus/pci/devices/0000:9b:00.0/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    assert runner.run([gpu_count.check], context, {}, 10.0).results[0].finding.reason == expected
