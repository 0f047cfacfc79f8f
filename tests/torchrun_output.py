"""What torchrun of PyTorch 2.13 wrote into a job's output on two nodes of two ranks; only the paths are shortened."""

_TAIL = """[E] torch/distributed/elastic/multiprocessing/api.py] failed (exitcode: {code}) local_rank: 1 (pid: 8498)
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
prog.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_07:42:22
  host      : localhost
  rank      : {second} (local_rank: 0)
  exitcode  : -15 (pid: 8496)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 8496
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_07:42:22
  host      : localhost
  rank      : {first} (local_rank: 1)
  exitcode  : {code} (pid: 8498){name}
  error_file: <N/A>
  traceback : {told}
============================================================
"""  # noqa: W291 (torch writes the blank)
_SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
LOST = (
    "[rank{0}]: Traceback (most recent call last):\n"
    '[rank{0}]:   File "prog.py", line 25, in main\n'
    "[rank{0}]:     dist.all_reduce(t)\n"
    "[rank{0}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:10883. This is typically caused by a remote worker crashing. GLHF!\n"
)
DEVICE = (
    "[rank{0}]: Traceback (most recent call last):\n"
    '[rank{0}]:   File "prog.py", line 15, in main\n'
    '[rank{0}]:     if bad: raise RuntimeError("No space left on device")\n'
    "[rank{0}]: RuntimeError: CUDA error: unspecified launch failure\n"
    "[rank{0}]: CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "[rank{0}]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
RECORDED = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
prog.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_07:48:04
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 24102)  (SIGTERM)
  error_file: /tmp/torchelastic__cvhd5rs/xcuda_lfsgnpsy/attempt_0/0/error.json
  traceback : Traceback (most recent call last):
    File "prog.py", line 25, in main
      dist.all_reduce(t)
  RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26524.
  
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_07:48:03
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 24104) 
  error_file: /tmp/torchelastic__cvhd5rs/xcuda_lfsgnpsy/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "prog.py", line 15, in main
      if how=="cuda": raise RuntimeError("CUDA error: unspecified launch failure")
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  RuntimeError: CUDA error: unspecified launch failure
  CUDA kernel errors might be asynchronously reported at some other API call.
  
============================================================
"""  # noqa: W291, W293 (as above)
OOM = (
    "slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=5.0. Some of your processes may have been killed by "
    "the cgroup out-of-memory handler.\nsrun: error: n2: task 1: Out Of Memory\n"
)


def table(first: int, second: int, code: int, name: str = "") -> str:
    """The end of one node's torchrun: `first` failed with this code, `second` was ended by torchrun."""
    told = f"Signal {-code} ({name}) received by PID 8498" if code < 0 else _SEE
    return _TAIL.format(first=first, second=second, code=code, name=f"  ({name})" if name else " ", told=told)
