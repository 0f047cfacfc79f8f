"""Lists names that show what a stack does: files and functions of torch, of its neighbours, and of the kernel.

Tables only; `place` reads them. If a name is missing here, a verdict comes later, but it is not wrong: unknown code
counts as the user's own code, which is not acted on before the action limit.
"""

from __future__ import annotations

import enum
import re


class Kind(str, enum.Enum):
    """The part of a training program."""

    COLLECTIVE = "collective"
    BACKWARD = "backward"
    """The thread is in autograd's native engine: it computes, or waits for a gradient reduction; motion shows which."""
    SYNC = "sync"
    """Waiting for the device: victim and culprit look alike here."""
    LOADER = "loader"
    CHECKPOINT = "checkpoint"
    STARTUP = "startup"
    COMPILE = "compile"
    USER = "user"
    IDLE = "idle"
    """A helper that waits for work."""
    UNKNOWN = "unknown"
    """No stack."""

    # Enum's own is written in Python, and judging 100,000 ranks asks for it a million times.
    __hash__ = str.__hash__


class WaitsOn(str, enum.Enum):
    """The kind of thing that a thread waits for."""

    LOCK = "a lock or queue"
    """A Python lock, condition, event or queue, seen in the frames."""
    NATIVE_LOCK = "a native lock"
    """A futex below native code: a plain lock, or a C++ pool at work."""
    SLEEP = "a timer"
    STORAGE = "storage"
    NETWORK = "the network or a pipe"
    CHILD = "a child process"
    NONE = "native or user code"

    __hash__ = str.__hash__


STARTUP_CALLS = frozenset(
    {"init_process_group", "_new_process_group_helper", "new_group", "_new_group_with_tag", "_store_based_barrier",
     "rendezvous", "init_device_mesh"}
)  # fmt: skip
RENDEZVOUS = re.compile(
    r"\(torch/distributed/(?:rendezvous|distributed_c10d|device_mesh|elastic/rendezvous/|elastic/utils/store)"
)
"""Labels of start-up places at which a rank, or torchrun, waits for its peers and asks a store again and again."""
WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/_ops.py", "torch/utils/_contextlib.py", "torch/_compile.py",
             "contextlib.py", "functools.py", "torch/_dynamo/eval_frame.py")  # fmt: skip

TIGHT: tuple[tuple[Kind, str, str], ...] = (
    (Kind.COLLECTIVE, "torch/distributed/distributed_c10d.py", r".*"),
    (Kind.COLLECTIVE, "torch/distributed/_functional_collectives.py", r".*"),
    (Kind.COLLECTIVE, "torch/distributed/nn/", r".*"),
    (Kind.COLLECTIVE, "torch/distributed/utils.py", r"_verify_param_shape.*|_sync_.*"),
    (Kind.COLLECTIVE, "torch/distributed/algorithms/join.py", r".*"),
    (Kind.COLLECTIVE, "torch/nn/parallel/distributed.py", r"_sync_.*|_distributed_broadcast.*|_default_broadcast.*"),
    (Kind.COLLECTIVE, "torch/distributed/fsdp/", r".*(gather|scatter|reduce|unshard|wait|sync|broadcast).*"),
    (Kind.COLLECTIVE, "torch/distributed/_composable/", r".*(gather|scatter|reduce|unshard|wait|sync).*"),
    (Kind.COLLECTIVE, "torch/distributed/pipelining/", r".*(wait|p2p|send|recv).*"),
    (Kind.COLLECTIVE, "deepspeed/comm/", r".*"),
    (Kind.COLLECTIVE, "deepspeed/runtime/pipe/p2p.py", r".*"),
    (Kind.COLLECTIVE, "megatron/core/pipeline_parallel/p2p_communication.py", r".*"),
    (Kind.COLLECTIVE, "megatron/core/tensor_parallel/mappings.py", r".*"),
    (Kind.COLLECTIVE, "megatron/core/distributed/param_and_grad_buffer.py", r".*(?:sync|reduce|gather).*"),
    (Kind.COLLECTIVE, "megatron/core/distributed/finalize_model_grads.py", r"_?(?:all|sync|reduce).*"),
    (Kind.COLLECTIVE, "horovod/", r".*"),
    (Kind.BACKWARD, "torch/autograd/graph.py", r"_engine_run_backward"),
    (Kind.BACKWARD, "torch/autograd/__init__.py", r"backward|grad"),
    (Kind.STARTUP, "torch/distributed/elastic/rendezvous/", r".*"),
    (Kind.SYNC, "torch/cuda/", r"synchronize|wait_stream|wait_event|wait"),
    (Kind.SYNC, "torch/accelerator/", r"synchronize"),
    (Kind.SYNC, "torch/amp/grad_scaler.py", r".*"),
    (Kind.SYNC, "torch/nn/utils/clip_grad.py", r".*"),
    (Kind.SYNC, "megatron/core/optimizer/clip_grads.py", r".*"),
    (Kind.SYNC, "megatron/training/training.py", r"training_log"),
    (Kind.SYNC, "megatron/core/transformer/moe/token_dispatcher.py", r"_maybe_dtoh_and_synchronize"),
)
"""(kind, start of the file, pattern of functions); only the innermost frame that is not a wrapper is compared."""

LOOSE: tuple[tuple[Kind, str, str], ...] = (
    (Kind.CHECKPOINT, "torch/distributed/checkpoint/", r".*"),
    (Kind.CHECKPOINT, "torch/serialization.py", r".*"),
    (Kind.CHECKPOINT, "safetensors/", r".*"),
    (Kind.CHECKPOINT, "slurm_robust/checkpoint/", r".*"),
    (Kind.STARTUP, "<frozen importlib", r".*"),
    (Kind.STARTUP, "importlib/", r".*"),
    (Kind.STARTUP, "torch/distributed/rendezvous.py", r".*"),
    (Kind.STARTUP, "torch/distributed/elastic/", r".*"),
    (Kind.COMPILE, "torch/_dynamo/convert_frame.py", r".*"),
    (Kind.COMPILE, "torch/_inductor/async_compile.py", r".*"),
    (Kind.COMPILE, "torch/_inductor/codecache.py", r".*"),
    (Kind.COMPILE, "torch/_inductor/compile_worker/", r".*"),
    (Kind.COMPILE, "torch/utils/cpp_extension.py", r".*"),
    (Kind.COMPILE, "triton/compiler/", r".*"),
    (Kind.COMPILE, "triton/runtime/autotuner.py", r".*"),
    (Kind.LOADER, "torch/utils/data/", r".*"),
    (Kind.LOADER, "torchdata/", r".*"),
    (Kind.LOADER, "nvidia/dali/", r".*"),
    (Kind.LOADER, "webdataset/", r".*"),
    (Kind.LOADER, "streaming/base/", r".*"),
)
"""Like `TIGHT`, but compared with any frame on the way out: such code calls the user's code."""

SLOW_NAMES = re.compile(
    r"checkpoint|ckpt|state_dict|save_(?:model|pretrained|weights)|(?:^|_)(?:eval|evaluate|evaluation|valid|validate|"
    r"validation|infer|generate|test)(?:_|$)|download|upload|tokeniz|preprocess|warm_?up|compile|build_(?:index|dataset)",
    re.IGNORECASE,
)

STORES = re.compile(
    r"(?:^|_)(?:saves?|saving|fsync|flush|dump|write|restore)(?:_|$)|(?:^|_)load_(?:model|weights|state)|pretrained"
)
"""Functions in which one call may wait for storage for minutes; `SLOW_NAMES` are slow whatever they wait for."""

PRIMITIVES: tuple[tuple[WaitsOn, tuple[str, ...]], ...] = (
    (WaitsOn.LOCK, ("threading.py", "queue.py", "multiprocessing/synchronize.py", "concurrent/futures/")),
    (WaitsOn.LOCK, ("multiprocessing/queues.py", "multiprocessing/connection.py",
                    "multiprocessing/resource_sharer.py")),
    (WaitsOn.CHILD, ("subprocess.py", "multiprocessing/popen_fork.py", "multiprocessing/popen_spawn")),
    (WaitsOn.NETWORK, ("socket.py", "ssl.py", "http/", "urllib", "requests/", "httpx/", "httpcore/", "aiohttp/",
                    "asyncio/", "botocore/", "boto3/", "s3fs/", "gcsfs/", "fsspec/", "google/cloud/", "grpc/",
                    "huggingface_hub/",
                    "redis/", "zmq/", "paramiko/", "smart_open/", "tenacity/", "backoff/")),
    (WaitsOn.STORAGE, ("gzip.py", "bz2.py", "lzma.py", "zipfile", "tarfile.py", "shutil.py", "pathlib", "glob.py",
                       "os.py", "tempfile.py", "codecs.py", "pickle.py", "numpy/lib/", "PIL/", "h5py/", "zarr/",
                       "pandas/io/", "pyarrow/", "lmdb/", "sqlite3/", "mmap", "tifffile/", "netCDF4/")),
    (WaitsOn.NONE, ("selectors.py", "signal.py")),
)  # fmt: skip
WCHAN: tuple[tuple[WaitsOn, re.Pattern[str]], ...] = (
    (WaitsOn.NATIVE_LOCK, re.compile(r"futex")),
    (WaitsOn.SLEEP, re.compile(r"nanosleep")),
    (WaitsOn.CHILD, re.compile(r"^do_wait|kernel_wait")),
    (WaitsOn.STORAGE, re.compile(r"nfs|rpc_|folio|page|io_schedule|fuse|request_wait|^ll_|lustre|^cl_|osc_|xfs|ext4|"
                                 r"btrfs|jbd2|blk|bit_wait|writeback|^wb_|balance_dirty|ceph|gpfs|mmfs|inode|iomap|"
                                 r"flock|lock_page")),
    (WaitsOn.NETWORK, re.compile(r"poll|select|pipe|unix_stream|sk_|tcp|inet|sock|wait_woken|skb")),
)  # fmt: skip
