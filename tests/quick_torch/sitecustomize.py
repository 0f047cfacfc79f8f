"""Lets a rank of a test start and end PyTorch in 1.0 s of processor time instead of 2.6, without torch.compile.

Two parts of it are left out. The first optimizer imports all of torch._dynamo, with sympy and inductor, for one
decorator: here that module holds what DDP without torch.compile asks for (FSDP needs more). And `import torch`
registers kernels for tensors without data. The rest of PyTorch is the real one, gloo included. The garbage collector
runs seldom; it does run at the end, for a process group that nothing frees has threads that can abort the exit.

Each Python that has this folder on PYTHONPATH loads this file at its start; `helpers.quick_torch` puts it there.
"""

import gc
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace


def _dynamo(module):
    module.disable = lambda function=None, *_, **__: function or (lambda given: given)
    module.eval_frame = SimpleNamespace(OptimizedModule=type("OptimizedModule", (), {}))
    module.graph_break = lambda *_, **__: None
    module.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
    module.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "")


def _meta_registrations(module):
    import torch  # noqa: PLC0415 (not every Python here has it)

    # What else the kernels bring: PyTorch 2.13 makes no torch.Generator without this.
    if hasattr(torch._C, "_set_generator_metaclass"):
        from torch._opaque_base import OpaqueBaseMeta  # noqa: PLC0415 (others have no such module)

        torch._C._set_generator_metaclass(OpaqueBaseMeta)


_LEFT_OUT = {"torch._dynamo": _dynamo, "torch._meta_registrations": _meta_registrations}


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, _Finder) if name in _LEFT_OUT else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        _LEFT_OUT[module.__name__](module)


sys.meta_path.insert(0, _Finder)
gc.set_threshold(200_000)
