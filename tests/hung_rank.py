"""A rank that hangs as real ones do, for programs of tests that do without torch: `SOURCE` is put before their own."""

from __future__ import annotations

SOURCE = '''
import ctypes, signal, time

def wait_in_the_kernel():
    """D state for ever: the parent of a vfork waits until its child calls exec. The child ends with its parent."""
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.prctl(1, int(signal.SIGKILL))
        while True:
            libc.pause()

# The judge knows a collective by the file that its function is in.
_COLLECTIVE = "def all_reduce(is_over):\\n    while not is_over():\\n        time.sleep(0.01)\\n"
exec(compile(_COLLECTIVE, "/usr/lib/python3/torch/distributed/distributed_c10d.py", "exec"))
'''
"""Defines `wait_in_the_kernel()` and `all_reduce(is_over)`, which waits for the others until `is_over()` is true."""
