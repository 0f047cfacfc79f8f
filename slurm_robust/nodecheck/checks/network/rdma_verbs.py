"""Can jobs reach the RDMA cards: drivers loaded, device files there and open to users?"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options, Status
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import pci, rdma, small_files

_INFINIBAND_CLASS = "0x0207"  # PCI class of an InfiniBand controller: a card in Ethernet mode has another
_DRIVERS = ("mlx5_core", "mlx4_core")


def probe(context: Context, options: Options) -> Facts:
    """Verbs devices with their files, InfiniBand functions without a verbs driver, and modules that are missing."""
    folder = context.path("/sys/class/infiniband_verbs")
    files: Facts = {}
    for name in small_files.names(folder):
        device = small_files.word(folder / name / "ibdev", 64)
        if device:
            files[device] = [name, _mode(context, name)]
    modules = context.path("/sys/module")
    return {
        "devices": [device["name"] for device in rdma.devices(context) if device["kind"] != "slice"],
        "copied": not small_files.is_folder(modules),
        "loaded": small_files.is_folder(modules / "ib_uverbs") or small_files.is_folder(folder),
        "files": files,
        "without_driver": sorted(_without_driver(context)),
        "missing": [
            str(name) for name in options["modules"] if not small_files.is_folder(modules / str(name).replace("/", "_"))
        ],
    }


def _mode(context: Context, name: str) -> int | None:
    try:
        return (context.path("/dev/infiniband") / name).stat().st_mode & 0o777
    except OSError:
        return None


def _without_driver(context: Context) -> Iterator[str]:
    """InfiniBand functions that the card's driver has and the verbs driver has not."""
    for driver in _DRIVERS:
        for address in small_files.names(context.path("/sys/bus/pci/drivers") / driver):
            function = context.path("/sys/bus/pci/devices") / address
            if not pci.ADDRESS.match(address) or small_files.exists(function / "physfn"):
                continue
            if small_files.word(function / "class", 16).startswith(_INFINIBAND_CLASS) and not small_files.names(
                function / "infiniband"
            ):
                yield address


def _faults(facts: Facts, options: Options) -> Faults:
    status = Status.FAIL if options["required"] else Status.WARN
    if facts["missing"]:
        sentence = f"kernel module {some(facts['missing'])} is not loaded"
        yield Fault.fail("module_missing", sentence, f"`modprobe {facts['missing'][0]}`")
    if facts["without_driver"]:
        sentence = f"InfiniBand card {some(facts['without_driver'])} has no RDMA device"
        yield Fault(status, "verbs_driver_missing", sentence, "`modprobe mlx5_ib`; read `dmesg | grep mlx5`")
    if not facts["devices"] or facts["copied"]:
        return
    if not facts["loaded"]:
        yield Fault(status, "uverbs_missing", "jobs cannot use RDMA: ib_uverbs is not loaded", "`modprobe ib_uverbs`")
        return
    files = {device: facts["files"].get(device) for device in facts["devices"]}
    none = [device for device, found in files.items() if found is None or found[1] is None]
    closed = [device for device, found in files.items() if found and found[1] is not None and not found[1] & 0o022]
    if none:
        sentence = f"{some(none)} has no file in /dev/infiniband"
        yield Fault(status, "device_file_missing", sentence, "`udevadm trigger --subsystem-match=infiniband_verbs`")
    if closed:
        sentence = f"only root may use {some(closed)}"
        yield Fault(
            status, "device_file_closed", sentence, "`ls -l /dev/infiniband`; udev's rules of rdma-core set 0666"
        )


def judge(facts: Facts, options: Options) -> Finding:
    """Warn, since a job without RDMA runs, if slowly; fail if the site requires RDMA or names a missing module."""
    evidence = {"files": facts["files"], "copied": facts["copied"]}
    if not facts["devices"]:
        healthy = Finding.skip("no_rdma", "the node has no RDMA device", evidence)
    elif facts["copied"]:
        healthy = Finding.skip("not_here", "a copied tree has no device files", evidence)
    else:
        said = f"jobs can open {len(facts['files'])} RDMA devices"
        healthy = Finding.passed("verbs_usable", said, evidence)
    return conclude(_faults(facts, options), healthy, evidence)


check = Check(
    **Check.parts_of(__name__),
    reads="/sys/class/infiniband_verbs, /dev/infiniband, /sys/bus/pci/drivers/mlx5_core, /sys/module",
    cost="two small reads and a stat a device, under 1 ms",
    lane=rdma.LANE,
    options={
        "required": Option(False, "fail, and not only warn, where jobs cannot use RDMA", "ours: not every site does"),
        "modules": Option(
            [], "list of kernel modules that must be loaded (or built in, where /sys/module has them)", "ours: empty"
        ),
    },
)
