"""What other lines decide about a root: warnings, watchdogs of other ranks, ports of other nodes, a cut log."""

from __future__ import annotations

import pytest

from slurm_robust.diagnose.findings import findings
from slurm_robust.diagnose.root import Diagnosis, diagnose
from slurm_robust.diagnose.taxonomy import Blame


def of(*lines: str) -> Diagnosis:
    """The diagnosis of these lines."""
    return diagnose(findings(lines))


WARNED = (
    "/opt/env/lib/python3.11/site-packages/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Unexpected "
    "error from cudaGetDeviceCount(). Error 802: system not yet initialized (Triggered internally at ...)"
)
NO_GPU = ("Traceback (most recent call last):", '  File "train.py", line 8, in main', "    model.cuda()")


def test_a_driver_that_failed_in_a_warning_is_the_root_of_an_exception_that_finds_no_gpu() -> None:
    """The exception alone could be the program's."""
    found = of(WARNED, "starting", *NO_GPU, "RuntimeError: No CUDA GPUs are available")
    assert (found.category.name, found.blame) == ("gpu_driver", Blame.NODE)
    assert found.root is not None
    assert "Error 802" in found.root.text
    assert "finds no GPU" in found.why


NVML = "/opt/env/lib/python3.11/site-packages/torch/cuda/__init__.py:734: UserWarning: Can't initialize NVML"


@pytest.mark.parametrize("warning", [WARNED, NVML])
@pytest.mark.parametrize(
    ("code", "last"),
    [
        ('dist.init_process_group("nccl")', "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
        ('assert torch.cuda.is_available(), "CUDA required"', "AssertionError: CUDA required"),
        ("assert torch.cuda.is_available()", "AssertionError"),
        ("assert torch.cuda.device_count() > 0, 'start me elsewhere'", "AssertionError: start me elsewhere"),
        (
            'model = torch.load("m.pt")',
            "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        ),
        (
            'raise RuntimeError("torch.cuda.is_available() is False")',
            "RuntimeError: torch.cuda.is_available() is False",
        ),
        (
            'trainer = Trainer(accelerator="gpu", devices=8)',
            "lightning.fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
        ),
    ],
)
def test_however_a_program_says_that_it_finds_no_gpu(warning: str, code: str, last: str) -> None:
    """The driver's warning before it decides; without one nobody knows, or it is the program's."""
    trace = (NO_GPU[0], NO_GPU[1], f"    {code}", last)
    found = of(warning, "starting", *trace)
    assert (found.category.name, found.blame) == ("gpu_driver", Blame.NODE)
    assert found.root is not None
    assert found.root.text == warning
    assert of("starting", *trace).blame is not Blame.NODE
    assert of(*trace, warning).blame is not Blame.NODE


def test_an_assertion_of_something_else_stays_the_programs() -> None:
    """A program may have gone on without a GPU, and name CUDA in what it checks."""
    trace = (NO_GPU[0], NO_GPU[1], "    assert cfg.cuda_graphs in (0, 1)", "AssertionError: cuda_graphs")
    found = of(WARNED, *trace)
    assert (found.category.name, found.blame) == ("assertion", Blame.PROGRAM)


def test_a_warning_is_no_root_of_what_has_nothing_to_do_with_it() -> None:
    """A program that went on without a GPU may fail for reasons of its own."""
    found = of(WARNED, "starting on CPU", *NO_GPU, "KeyError: 'labels'")
    assert (found.category.name, found.blame) == ("key", Blame.PROGRAM)


def watchdog(rank: int, enqueued: int) -> str:
    """A watchdog's line of this rank."""
    return (
        f"[rank{rank}]:[E501 10:00:00.1 ProcessGroupNCCL.cpp:684] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: failure detected by watchdog at work sequence id: 91 PG status: last enqueued work: {enqueued}, "
        "last completed work: 90"
    )


def test_the_rank_that_enqueued_fewest_is_named() -> None:
    """The first watchdog to complain is one of those that waited."""
    found = of(*(watchdog(rank, 90 if rank == 2 else 93) for rank in range(4)))
    assert found.category.name == "comm_timeout"
    assert found.blame is Blame.EITHER
    assert found.root is not None
    assert "[Rank 2]" in found.root.text
    assert found.why.startswith("rank 2 has enqueued 90 operations of its group, others up to 93")


def test_watchdogs_that_agree_or_differ_by_half_name_nobody() -> None:
    """Ranks may be an operation apart without fault."""
    for enqueued in ((91, 91, 91, 91), (91, 92, 91, 92)):
        found = of(*(watchdog(rank, count) for rank, count in enumerate(enqueued)))
        assert found.why == ""
        assert found.root is not None
        assert "[Rank 0]" in found.root.text


def port(node: str) -> str:
    """A port's error on this node."""
    return f"{node}:811:950 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"


def test_ports_that_fail_on_several_nodes_share_the_cause() -> None:
    """One node's port may be its own; those of several hang on a switch."""
    assert of(port("n1"), port("n1")).blame is Blame.EITHER
    found = of(port("n1"), port("n2"), port("n3"))
    assert found.blame is Blame.SHARED
    assert found.why == "ports of n1, n2, n3 report errors: these nodes share the cause"


@pytest.mark.parametrize(
    ("last", "category", "blame"),
    [
        ('    raise ValueError(f"shard {shard} is empty")', "value", Blame.PROGRAM),
        ("    out = self.layer(x)", "runtime", Blame.EITHER),
    ],
)
def test_a_traceback_without_its_last_line_tells_as_far_as_it_goes(last: str, category: str, blame: Blame) -> None:
    """The log was cut; where something else was said, that counts."""
    lines = (
        "step 3 loss 2.1",
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 8, in main',
    )
    found = of(*lines, f"[rank1]: {last}")
    assert (found.category.name, found.blame) == (category, blame)
    assert found.root is not None
    assert found.root.text.endswith(last.strip())
    assert found.root.place == "train.py:main"
    assert of("RuntimeError: CUDA error: unspecified launch failure", *lines, last).category.name == "cuda_error"


@pytest.mark.parametrize(
    ("file", "code", "category", "blame"),
    [
        ("/home/u/data.py", 'assert tokens.shape[1] == self.block, "bad block"', "assertion", Blame.PROGRAM),
        ("/opt/env/lib/python3.11/site-packages/fused/ops.py", "assert x.is_contiguous()", "runtime", Blame.EITHER),
        ("/home/u/train.py", "assert torch.isfinite(loss).all(), loss", "runtime", Blame.EITHER),
        ("/home/u/train.py", "assert loss.item() > 0", "runtime", Blame.EITHER),
        ("/home/u/train.py", "self.assert_same(tokens)", "runtime", Blame.EITHER),
    ],
)
def test_a_traceback_cut_at_an_assertion_of_the_program(file: str, code: str, category: str, blame: Blame) -> None:
    """What the program itself checks is its own; what waits for a device there may fail for the device."""
    found = of(
        "step 3 loss 2.1",
        "[rank5]: Traceback (most recent call last):",
        '[rank5]:   File "/home/u/train.py", line 8, in main',
        "[rank5]:     main()",
        f'[rank5]:   File "{file}", line 90, in __next__',
        f"[rank5]:     {code}",
    )
    assert (found.category.name, found.blame) == (category, blame)
    assert found.why == "the log is cut: this traceback has no last line"


OFI = "ip-10-0-3-14:811:902 [3] nccl_net_ofi_init:1444 NCCL WARN NET/OFI Failed to initialize rdma protocol"
NO_NETWORK = "ip-10-0-3-14:811:902 [3] net.cc:336 NCCL WARN Error: network AWS Libfabric not found."


def test_a_network_plugin_that_cannot_start_is_not_missing() -> None:
    """NCCL says of both that the network is not found; only a plugin that is there says why."""
    for lines in ((OFI, NO_NETWORK), (NO_NETWORK, OFI)):
        found = of(*lines)
        assert (found.category.name, found.blame) == ("rdma_error", Blame.EITHER)
        assert found.root is not None
        assert found.root.text == OFI
        assert found.why == "the plugin is there and could not start, therefore its network is not found"
    missing = of("NCCL INFO NET/Plugin : dlerror=libnccl-net-ofi.so: cannot open shared object file", NO_NETWORK)
    assert (missing.category.name, missing.blame) == ("import", Blame.PROGRAM)


def test_a_network_plugin_that_cannot_start_is_no_root_of_what_went_on_without_it() -> None:
    """NCCL takes another network then, and on one node Neuron needs none."""
    found = of(
        "2026-Apr-13 01:46:31.0675 8:8 [2] nccl_net_ofi_create_plugin:219 CCOM WARN NET/OFI Failed to initialize rdma "
        "protocol",
        "nccl_net_ofi_create_plugin:354 CCOM WARN NET/OFI aws-ofi-nccl initialization failed",
        "step 3 loss 2.1",
        *NO_GPU,
        "RuntimeError: the shards of the index differ",
    )
    assert found.category.name == "runtime"


@pytest.mark.parametrize(
    ("line", "category", "blame"),
    [
        ("OSError: [Errno 98] Address already in use", "address_in_use", Blame.PROGRAM),
        (
            "slurmstepd: error: pyxis:     [ERROR] No such file or directory: /img/a.sqsh",
            "launch_failed",
            Blame.PROGRAM,
        ),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "launch_failed", Blame.NODE),
        ("docker: Error response from daemon: toomanyrequests: slow down", "remote_service", Blame.SHARED),
        ("RuntimeError: CUDA error: invalid device ordinal", "argument", Blame.PROGRAM),
        ("n1:8:9 [0] net.cc:334 NCCL WARN Error: network AWS Libfabric not found.", "import", Blame.PROGRAM),
        (
            "the node(s) n3_9_0 have been removed from the rendezvous 'a' since they had no heartbeat.",
            "node_check",
            Blame.EITHER,
        ),
        ("dlrover.python.NodeCheckFailedError: This node is down.", "node_check", Blame.NODE),
        (
            "[2026-05-01 10:00:00,1] [INFO] [training.py:771:run] Fault nodes are: [3]  and stragglers are: [].",
            "node_check",
            Blame.NODE,
        ),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "version", Blame.PROGRAM),
        ("RuntimeError: assigned grad has data of a different type", "runtime", Blame.PROGRAM),
        ("RuntimeError: Found dtype Float but expected BFloat16", "runtime", Blame.PROGRAM),
        ("amdgpu 0000:44:00.0: amdgpu: GPU reset(4) failed", "gpu_lost", Blame.NODE),
        ("ERROR  TDRV:tdrv_get_dev_info     No neuron device available", "gpu_driver", Blame.EITHER),
        (
            "XlaRuntimeError: INTERNAL: Accelerator device halted prematurely, perhaps due to a check",
            "cuda_error",
            Blame.EITHER,
        ),
        ("RuntimeError: synStatus=8 [Device not found] Device acquire failed.", "gpu_driver", Blame.EITHER),
        (
            "EI0006: 2026-08-05 Getting socket times out. Reason: Remote Rank did not send the data",
            "comm_timeout",
            Blame.EITHER,
        ),
        (
            "EI0004: 2026-03-02-10:11:12 The ranktable or rank is invalid, Reason:[The ranktable is invalid].",
            "argument",
            Blame.PROGRAM,
        ),
        (
            "Initialize_Transport(EI0009): Device 0 transport init error. Reason: The network port is down.",
            "rdma_error",
            Blame.EITHER,
        ),
        (
            "Execution_Error_ROCE_CQE(EI0013): An error CQE occurred during operator execution.",
            "rdma_error",
            Blame.EITHER,
        ),
        ("[Error]: The device memory has multi-bit ECC error.", "gpu_ecc", Blame.NODE),
        ("RuntimeError: NPU function error: AclrtSynchronizeDevice, error code is 507054", "gpu_ecc", Blame.NODE),
        ("RuntimeError: Collective call returned error: hcclRemoteError", "peer_lost", Blame.EITHER),
        ("[2026-03-02 10:11:12.123][hcl][error] HCL: Port 3 on hl2 is down", "rdma_error", Blame.EITHER),
        (
            "kernel: habanalabs 0000:4d:00.0: hl4: Critical: PLL frequency error, device lost",
            "gpu_lost",
            Blame.NODE,
        ),
        (
            "Megascale detects a hang that is likely caused by bad TPU chips on the following hosts.",
            "node_check",
            Blame.EITHER,
        ),
        ('details = "Socket closed"', "peer_lost", Blame.EITHER),
    ],
)
def test_what_a_line_decides(line: str, category: str, blame: Blame) -> None:
    """The category and the blame of a log that says no more."""
    found = of("step 3 loss 2.1", line)
    assert (found.category.name, found.blame) == (category, blame)


def test_an_interrupt_that_is_only_printed_gives_way_to_the_time_limit() -> None:
    """A program prints the exception that it was ended with, and goes on to end."""
    found = of(
        "stopping: KeyboardInterrupt()",
        "error: KeyboardInterrupt()",
        "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-02-02T03:04:05 DUE TO TIME LIMIT ***",
    )
    assert (found.category.name, found.blame) == ("time_limit", Blame.NOBODY)
