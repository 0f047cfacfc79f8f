"""NVML asked through NVIDIA's own binding: values, errors, old drivers, lost GPUs, calls that never return."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_gpus import HEALTHY, FakeGpus
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.isolate import Task, run_all
from slurm_robust.nodecheck.engine.registry import Facts
from slurm_robust.nodecheck.nvml import facts, fields, judging, session

ALL = (*fields.READERS, *fields.FIELD_VALUES)


def taken(gpus: FakeGpus, *names: str, deadline_s: float = 10.0) -> Facts:
    """Facts taken in a process of their own, as a lane's probe takes them."""
    context = gpus.context(deadline_s=deadline_s)
    outcome = run_all({"x": Task(lambda: facts.take(context, *names), deadline_s)})["x"]
    assert not outcome.error
    assert isinstance(outcome.value, dict)
    return outcome.value


def test_eight_healthy_gpus_answer(gpus: FakeGpus) -> None:
    """Values come as plain numbers and texts; what the board has not is an error by NVML's name."""
    found = taken(gpus, *ALL)
    assert (found["state"], found["hung"], len(found["gpus"])) == ("", {}, 8)
    gpu = found["gpus"][3]
    assert (gpu["bus"], gpu["minor"], gpu["model"]) == ("0000:4b:00", 3, "NVIDIA H100 80GB HBM3")
    assert gpu["values"]["pcie"]["width"] == 16
    assert gpu["values"]["nvlink_states"] == [1] * 18
    assert gpu["values"]["memory"]["used"] == 4 << 20
    assert gpu["errors"]["retired_single"] == "not_supported"
    assert gpu["profile"]["nvlinks"] == 18
    assert found["system"] == {"driver": "570.124.06", "cuda": 12080}


@pytest.mark.parametrize("machine", HEALTHY)
def test_every_kind_of_machine_is_read(gpus: FakeGpus, machine: str) -> None:
    """Each board's profile is found, and none of its gaps is more than an error by name."""
    gpus.scenario(HEALTHY[machine])
    found = taken(gpus, *ALL)
    assert found["gpus"]
    for gpu in found["gpus"]:
        assert gpu["profile"]
        assert not gpu["lost"]
        assert set(gpu["errors"].values()) <= {"not_supported", "function_not_found", "invalid_argument"}


def test_a_driver_without_newer_calls_is_read_by_older_ones(gpus: FakeGpus) -> None:
    """r470 knows neither the second memory call nor the newer name of the clock reasons."""
    gpus.scenario(HEALTHY["V100"])
    gpu = taken(gpus, "memory", "clock_reasons", "ecc_sram_over")["gpus"][0]
    assert gpu["values"]["memory"]["total"] == 32510 << 20
    assert gpu["values"]["clock_reasons"] == 1
    assert gpu["errors"] == {"ecc_sram_over": "function_not_found"}


def test_a_lost_gpu_is_named_and_the_others_are_read(gpus: FakeGpus) -> None:
    """One GPU off the bus hides no other."""
    gpus.scenario("gpu.2.lost=1")
    found = taken(gpus, "temperature")["gpus"]
    assert [gpu["lost"] for gpu in found] == ["", "", "gpu_is_lost", "", "", "", "", ""]
    assert found[3]["values"] == {"temperature": 31}


@pytest.mark.parametrize("how", ["hang", "hang_in_kernel"])
def test_a_call_that_never_returns_is_named(gpus: FakeGpus, how: str) -> None:
    """Call, GPU and whether it sleeps in the kernel; in time, whatever the call does."""
    gpus.scenario(f"gpu.5.call.nvmlDeviceGetTemperature={how}")
    began_s = time.monotonic()
    found = taken(gpus, "temperature", deadline_s=2.0)
    assert time.monotonic() - began_s < 30
    assert (found["hung"]["call"], found["hung"]["gpu"]) == ("nvmlDeviceGetTemperature", 5)
    assert (found["hung"]["task_state"] == "D") == (how == "hang_in_kernel")


def test_a_hang_is_paid_for_once(gpus: FakeGpus) -> None:
    """Checks after it in the lane do not ask again."""
    gpus.scenario("call.nvmlInitWithFlags=hang")
    context = gpus.context(deadline_s=1.0)

    def twice() -> list[float]:
        times = []
        for _ in range(2):
            began_s = time.monotonic()
            assert facts.take(context, "temperature")["hung"]["call"] == "nvmlInit"
            times.append(time.monotonic() - began_s)
        return times

    first_s, second_s = run_all({"x": Task(twice, 5.0)})["x"].value
    assert first_s >= 0.7
    assert second_s < first_s / 2


@pytest.mark.parametrize(
    ("code", "state"), [(18, "lib_rm_version_mismatch"), (9, "driver_not_loaded"), (77, "error_77")]
)
def test_an_error_at_the_start_is_said(gpus: FakeGpus, code: int, state: str) -> None:
    """Known ones by their name, others by their number."""
    gpus.scenario(f"call.nvmlInitWithFlags=error:{code}")
    found = taken(gpus, "temperature")
    assert (found["state"], found["gpus"]) == (state, [])


def test_text_that_is_none_is_an_error(gpus: FakeGpus) -> None:
    """A name that is not UTF-8 costs that value and no other."""
    (gpus.folder / "scenario").write_bytes(b"gpu.1.vbios=\xff\xfe\x80\n")
    gpu = taken(gpus, "vbios", "temperature")["gpus"][1]
    assert (gpu["errors"], gpu["values"]) == ({"vbios": "unreadable"}, {"temperature": 31})


def test_a_foreign_library_is_refused(gpus: FakeGpus) -> None:
    """It would run with this process's rights: neither it nor its folder may be others' to write."""
    gpus.library.chmod(0o666)
    assert taken(gpus, "temperature")["state"] == "untrusted_library"
    gpus.library.chmod(0o644)
    gpus.folder.chmod(0o777)
    assert taken(gpus, "temperature")["state"] == "untrusted_library"
    gpus.folder.chmod(0o755)
    assert taken(gpus, "temperature")["state"] == ""
    gpus.library.write_text("no library")
    assert taken(gpus, "temperature")["state"] == "no_library"
    gpus.library.unlink()
    assert taken(gpus, "temperature")["state"] == "no_library"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_library_below_somebody_else_s_folder_is_refused(gpus: FakeGpus) -> None:
    """Who may write any folder on the way, or its group, may put another library there; a sticky folder is safe."""
    deep = gpus.folder / "opt/nvidia/lib"
    deep.mkdir(parents=True)
    gpus.library = gpus.library.rename(deep / gpus.library.name)
    (gpus.folder / "scenario").rename(deep / "scenario")
    above = deep.parents[1]
    for owner, group, mode, state in (
        (0, 0, 0o755, ""),
        (1000, 0, 0o755, "untrusted_library"),
        (0, 0, 0o757, "untrusted_library"),
        (0, 1000, 0o775, "untrusted_library"),
        (0, 0, 0o1777, ""),
        (0, 0, 0o775, ""),
    ):
        os.chown(above, owner, group)
        above.chmod(mode)
        assert taken(gpus, "temperature")["state"] == state, (owner, group, oct(mode))
    os.chown(gpus.library, 0, 1000)
    gpus.library.chmod(0o664)
    assert taken(gpus, "temperature")["state"] == "untrusted_library"
    os.chown(gpus.library, 1000, 0)
    gpus.library.chmod(0o644)
    assert taken(gpus, "temperature")["state"] == "untrusted_library"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_library_behind_somebody_else_s_link_is_refused(gpus: FakeGpus) -> None:
    """Whoever may replace the link chooses where it leads."""
    theirs = gpus.folder / "theirs"
    theirs.mkdir()
    (theirs / "libnvidia-ml.so.1").symlink_to(gpus.library)
    gpus.library = theirs / "libnvidia-ml.so.1"
    assert taken(gpus, "temperature")["state"] == ""
    os.chown(theirs, 1000, 1000)
    assert taken(gpus, "temperature")["state"] == "untrusted_library"


def test_a_saved_tree_asks_no_gpu_of_this_machine(gpus: FakeGpus, tmp_path: Path) -> None:
    """`--root`: the GPUs of this machine are none of that tree's."""
    context = Context("n1", root=tmp_path, nvml_library=str(gpus.library))
    assert facts.take(context, "temperature")["state"] == "saved_tree"
    assert facts.take(Context("n1", root=tmp_path), "temperature")["state"] == "saved_tree"


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has NVIDIA's driver")
def test_without_a_driver_nothing_is_loaded() -> None:
    """No binding, no library: a node without GPUs pays a stat."""
    code = (
        "import sys; from slurm_robust.nodecheck.engine.context import Context\n"
        "from slurm_robust.nodecheck.nvml import facts\n"
        "assert facts.take(Context('n1'), 'temperature')['state'] == 'no_driver'\n"
        "assert not {'pynvml', 'ctypes.util', 'subprocess'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_binding_comes_without_what_it_never_calls(gpus: FakeGpus) -> None:
    """`ctypes.util` and with it subprocess are a third of the binding's time; the real module is not hidden after."""
    code = (
        "import sys; from slurm_robust.nodecheck.nvml import library; nvml = library.binding()\n"
        "assert 'subprocess' not in sys.modules and nvml.nvmlInit\n"
        "import ctypes.util; assert ctypes.util.find_library('c')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(st.text(max_size=60))
def test_any_name_of_a_device_is_taken(text: str) -> None:
    """Odd PCI names and process states stay texts."""
    assert isinstance(fields.bus_name(text), str)
    assert len(session.task_state(text)) <= 1


def test_pci_names_are_the_kernel_s() -> None:
    """Eight digits of domain or four, capitals or not."""
    for text in ("00000000:9B:00.0", "0000:9b:00.0", "0000:9B:00"):
        assert fields.bus_name(text) == "0000:9b:00"
    assert fields.bus_name("00010001:00:00.0") == "10001:00:00"


JSON = st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3))


@given(st.lists(st.tuples(st.sampled_from("ab"), JSON), max_size=8))
def test_the_odd_one_out_is_never_the_majority(told: list[tuple[str, object]]) -> None:
    """At most half of a model's GPUs can be odd."""
    pairs = [({"model": model}, value) for model, value in told]
    odd = judging.outliers(pairs)
    for model in "ab":
        sisters = [gpu for gpu, _ in pairs if gpu["model"] == model]
        assert len([gpu for gpu, _ in odd if gpu["model"] == model]) * 2 <= len(sisters)
    json.dumps(odd)
