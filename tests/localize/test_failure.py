import pytest
from localize_scenes import WORKER_LOCK, capture, evidence, in_loader, process, rank, repeated, waiting

from slurm_robust.core.model import Failure, FailureCause
from slurm_robust.localize.evidence import Evidence, RankExit
from slurm_robust.localize.failure import DISK_FULL, disk_path, failure_of
from slurm_robust.localize.judge import judge


def test_a_hang_is_named_by_its_place() -> None:
    """Two hangs at the same line on different nodes carry the same signature."""
    signatures = []
    for culprit in (1, 2):
        ranks = [waiting(n) if n != culprit else in_loader(n, process(WORKER_LOCK)) for n in range(4)]
        found = repeated(*ranks)
        failure = failure_of(found, judge(found))
        assert failure is not None
        assert failure.nodes == (f"n{culprit}",)
        assert failure.cause is FailureCause.EITHER
        signatures.append(failure.signature)
    assert signatures[0] == signatures[1]
    assert "_try_get_data" in signatures[0]


def test_a_death_is_named_by_its_cause() -> None:
    """A kill may be the node's; an exit code is the program's."""
    for ended, cause in (
        (RankExit(1, "n1", 1.0, None, 9), FailureCause.EITHER),
        (RankExit(1, "n1", 1.0, 3), FailureCause.PROGRAM),
    ):
        found = Evidence(2, {0: "n0", 1: "n1"}, exits=(ended,))
        failure = failure_of(found, judge(found))
        assert failure is not None
        assert (failure.nodes, failure.cause) == (("n1",), cause)


def test_a_stopped_process_is_not_the_nodes() -> None:
    """Somebody has stopped it: the program, or a person."""
    found = repeated(waiting(0), waiting(2), rank(1, process((), state="T")))
    failure = failure_of(found, judge(found))
    assert failure is not None
    assert failure.cause is FailureCause.EITHER


def test_nothing_failed() -> None:
    """A verdict of none has no signature."""
    found = evidence(capture(1.0, waiting(0)), exits=[RankExit(0, "n0", 1.0, 0)])
    assert failure_of(found, judge(found)) is None


def failed(node: str, *lines: str, rank: int = 1) -> Failure | None:
    """The failure of one rank that ended with 1 after these words, another one its victim."""
    exits = (RankExit(rank, node, 1.0, 1, 0, lines), RankExit(0, "n0", 1.2, 1, 0, (LOST,)))
    found = Evidence(4, {0: "n0", rank: node, 2: "n8", 3: "n9"}, exits=exits)
    return failure_of(found, judge(found))


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:50031"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: CUDA driver error: unknown error",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error",
        "[rank1]:[E] Process group watchdog thread terminated with exception: CUDA error: unknown error",
        "RuntimeError: HIP error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: out of memory",  # another process may hold the GPU
        "RuntimeError: something that nobody foresaw",
    ],
)
def test_an_error_of_the_gpu_is_compared_by_its_words(line: str) -> None:
    """Node or program: the same again on its node leaves it, so it is more than the program's, and has that node."""
    failure = failed("n1", line)
    assert failure is not None
    assert (failure.nodes, failure.cause) == (("n1",), FailureCause.WORDS)
    assert "peer" not in failure.signature


def test_what_a_rank_says_of_a_peer_tells_no_node() -> None:
    """The peers of one broken port report it, others each time: that makes it not the program's."""
    failure = failed("n1", "NCCL WARN NET/IB : Got completion from peer 10.0.3.7<54321> with status=12 opcode=0 len=0")
    assert failure is not None
    assert (failure.nodes, failure.cause, failure.category) == ((), FailureCause.WORDS, "rdma_error")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ],
)
def test_what_only_a_program_causes_counts_against_no_node(line: str) -> None:
    """An index out of bounds, a missing architecture, too large a batch."""
    failure = failed("n1", line)
    assert failure is not None
    assert failure.cause is FailureCause.PROGRAM


def test_the_same_error_has_the_same_signature_elsewhere() -> None:
    """Numbers, addresses, paths, ranks and sizes differ; the message does not."""
    first = failed("n1", "[rank1]: RuntimeError: block 0x7f3a99 of /scratch/j12/s-17.bin on rank 1: 4096 bytes too few")
    again = failed(
        "n2", "[rank2]: RuntimeError: block 0x7f11b2 of /data/j13/s-9.bin on rank 2: 512 bytes too few", rank=2
    )
    assert first is not None
    assert again is not None
    assert first.signature == again.signature


def test_two_unrelated_errors_of_one_type_are_two_failures() -> None:
    """RuntimeError is what PyTorch calls most of what can go wrong."""
    first, other = (
        failed("n1", "RuntimeError: the queue is empty"),
        failed("n2", "RuntimeError: no such tensor", rank=2),
    )
    assert first is not None
    assert other is not None
    assert first.signature != other.signature


def test_a_bare_exit_code_of_1_is_no_mark_to_know_it_by() -> None:
    """Every Python program that fails ends with it: nothing is concluded from the nodes where it shows."""
    failure = failed("n1")
    assert failure is not None
    assert failure.nodes == ()


def test_without_a_suspect_it_showed_on_every_node() -> None:
    """Which of them came first is chance: taken as its place, the next time would look like another node's."""
    exits = tuple(RankExit(n, f"n{n}", 1.0, 1, 0, ("RuntimeError: no such tensor",)) for n in range(4))
    found = Evidence(4, {n: f"n{n}" for n in range(4)}, exits=exits)
    failure = failure_of(found, judge(found))
    assert failure is not None
    assert failure.nodes == ("n0", "n1", "n2", "n3")


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: '/ckpt/step-5.pt'",
        "OSError: [Errno 122] Disk quota exceeded",
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
        "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed",
        "RuntimeError: basic_ios::clear: iostream error",
    ],
)
def test_a_full_disk_is_nobodys_and_the_same_everywhere(line: str) -> None:
    """torch.save does not say why it could not write; no node is remembered for it."""
    assert failed("n1", line) == Failure(DISK_FULL, (), FailureCause.PROGRAM, "disk_full")


def test_the_full_disk_is_found_by_the_path_that_was_named() -> None:
    """Where words name one."""
    named = RankExit(1, "n1", 1.0, 1, 0, ("OSError: [Errno 28] No space left on device: '/ckpt/step-5.pt'",))
    assert disk_path([named]) == "/ckpt/step-5.pt"
    assert disk_path([RankExit(1, "n1", 1.0, 1, 0, ("RuntimeError: basic_ios::clear: iostream error",))]) == ""


def test_a_launch_that_slurm_refused_is_slurms() -> None:
    """No rank has run: the whole step's end, and srun's own line."""
    line = "srun: error: Unable to create step for job 22: Invalid generic resource (gres) specification"
    found = Evidence(0, {}, exits=(RankExit(-1, "", 1.0, 1, 0, (line,)),))
    verdict = judge(found)
    assert verdict.suspects == ()
    assert "Slurm could not start the step" in verdict.reason
    assert failure_of(found, verdict) == Failure("died: launch", (), FailureCause.SLURM, "launch_failed")
