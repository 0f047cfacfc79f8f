import pytest
from localize_scenes import WORKER_IDLE

from slurm_robust.localize.evidence import StackFrame
from slurm_robust.localize.stacks.frames import label, own_frames, short_file, short_function


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", "torch/utils/data/dataloader.py"),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", "torch/_tensor.py"),
        ("/usr/lib/python3.11/multiprocessing/queues.py", "multiprocessing/queues.py"),
        ("torch/utils/data/dataloader.py", "torch/utils/data/dataloader.py"),
        ("/home/u/project/train.py", "project/train.py"),
        ("/tmp/torchinductor_u/ab/cabcdef.py", "torchinductor/generated.py"),
        ("<eval_with_key>.17", "<eval_with_key>"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_short_file(path: str, short: str) -> None:
    """Where a package is installed, and generated names, make no difference between ranks."""
    assert short_file(path) == short


def test_short_function() -> None:
    """Qualified names of Python 3.11 and plain ones of earlier versions are the same function."""
    assert short_function("DistributedDataParallel._sync_buffers") == "_sync_buffers"
    assert short_function("_exception_logger.<locals>.wrapper") == "wrapper"


def test_label_hides_addresses() -> None:
    """Addresses differ from process to process and say nothing."""
    assert label(StackFrame("f<0x7f12345678>", "/a/b/c.py", 3)) == "f<0x…> (b/c.py:3)"


def test_own_frames_of_a_forked_worker() -> None:
    """A forked loader carries its parent's frames; what it does itself begins at `_bootstrap`."""
    assert own_frames(WORKER_IDLE)[0].function == "BaseProcess._bootstrap"


@pytest.mark.parametrize(
    "folder", ["/opt/megatron-lm", "/home/u/src", "/opt/env/lib/python3.11/site-packages"], ids=str
)
def test_a_checkout_is_named_as_the_installed_package(folder: str) -> None:
    """Megatron is run from wherever it was cloned."""
    path = f"{folder}/megatron/core/pipeline_parallel/p2p_communication.py"
    assert short_file(path) == "megatron/core/pipeline_parallel/p2p_communication.py"
