"""The part of the SPANK plugin that must run in the program's own Python; the plugin puts it in front of PYTHONPATH.

It lets py-spy attach to this Python and its forked children where Yama allows only ancestors: each process needs its
own permission, and fork does not inherit it, so data loaders and torchrun's workers need it, too. And it removes the
old variables of PyTorch's flight recorder where this PyTorch knows the new ones: it would warn on each rank.

Whatever fails here, the program starts; then the site's or the user's own sitecustomize is loaded.
"""

import os
import sys

_YAMA_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_RENAMED = (
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
)
_NEW_NAMES_SINCE = (2, 9)  # as in slurm_robust/supervise/launch/attempt_settings.py


def _allow_tracer():
    try:
        with open(_YAMA_SCOPE) as file:
            if file.read().strip() != "1":
                return
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

        def allow():
            prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1).value, 0, 0, 0)

        allow()
        os.register_at_fork(after_in_child=allow)
    except Exception:
        return


def _load_the_other():
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    found = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
    if found is None or found.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


def _drop_old_names():
    # The plugin sets both names to the same value; a variable that the user set by one name alone stays.
    doubled = [old for old, new in _RENAMED if os.environ.get(old) and os.environ.get(old) == os.environ.get(new)]
    if not doubled:
        return
    try:
        # Read from PyTorch's files: importing it takes seconds, and not every Python here needs it.
        from importlib.machinery import PathFinder

        found = PathFinder.find_spec("torch")
        with open(os.path.join(os.path.dirname(found.origin), "version.py")) as file:
            line = next(row for row in file if row.startswith("__version__ = "))
        major, minor = line.split("=")[1].strip(" '\"\n").split(".")[:2]
        if (int(major), int(minor)) >= _NEW_NAMES_SINCE:
            for old in doubled:
                del os.environ[old]
    except Exception:
        return


_allow_tracer()
_drop_old_names()
_load_the_other()
