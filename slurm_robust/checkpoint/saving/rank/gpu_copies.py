"""Copies from GPUs: on a stream of their own, beside the training's, into memory that their driver has registered.

A copy into memory that is not registered goes through a buffer of the driver's, at half the speed or less, and holds
up whoever asks for it.
"""

from __future__ import annotations

import functools
import weakref

import torch

_PORTABLE = 1
"""cudaHostRegisterPortable: for all of a process's GPUs."""


class GpuCopy:
    """A copy that goes on; it sees what the training's stream has been given so far, and nothing later.

    Args:
        device: Whose tensors.
        into: Where to, on the CPU; contiguous, of the types of `out`.
        out: What, in the same order.
    """

    def __init__(self, device: torch.device, into: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        stream = _stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            for target, source in zip(into, out, strict=True):
                target.copy_(source, non_blocking=True)
                # Its memory is given to nobody else before this stream is through with it.
                source.record_stream(stream)
            self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._end.record(stream)

    def wait(self) -> None:
        """Return when it has ended.

        Raises:
            RuntimeError: the GPU failed.
        """
        self._end.synchronize()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def register(owner: object, memory: memoryview) -> str:
    """Make memory known to the driver, as long as `owner` lives; why that is not possible, empty where it is.

    It is asked for once and for all of it: while the driver does it, it may hold up all that the GPU is given.
    """
    if not memory.nbytes:
        return ""
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = runtime.cudaHostRegister(address, memory.nbytes, _PORTABLE)
    if int(code):
        return f"cudaHostRegister of {memory.nbytes / 1e9:.1f} GB answers {runtime.cudaGetErrorString(code)}"
    weakref.finalize(owner, runtime.cudaHostUnregister, address)
    return ""
