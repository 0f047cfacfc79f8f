"""Copies from GPUs: on a stream of their own, beside the training's, into memory that is registered with the driver.

A copy into memory that is not registered goes through a buffer of the driver, at half the speed or less, and blocks the
caller.
"""

from __future__ import annotations

import functools
import weakref

import torch

_PORTABLE = 1
"""cudaHostRegisterPortable: for all of a process's GPUs."""


class GpuCopy:
    """A running copy; it is ordered after the work that is on the training's stream so far.

    The targets, `into`, are on the CPU, contiguous, and of the types of `out`.
    """

    def __init__(self, device: torch.device, into: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        stream = _stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            for target, source in zip(into, out, strict=True):
                target.copy_(source, non_blocking=True)
                # Its memory is not reused before this stream has finished with it.
                source.record_stream(stream)
            self._end = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._end.record(stream)

    def wait(self) -> None:
        """Wait until it has ended. Raises RuntimeError if the GPU failed."""
        self._end.synchronize()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def register(owner: object, memory: memoryview) -> str:
    """Register memory with the driver for the life of `owner`; why that failed, empty if it did not.

    Call it once for all memory: registering may block all work of the GPU.
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
