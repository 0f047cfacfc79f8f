"""Lets a rank of a test start and end PyTorch in 1.3 s of processor time instead of 3.4, without torch.compile.

The first optimizer imports all of torch._dynamo, with sympy and inductor, for one decorator. Here that module holds
what DDP without torch.compile asks for (FSDP needs more); the rest of PyTorch is the real one, gloo included. The
garbage collector runs seldom, and not at the end. Each Python that has this folder on PYTHONPATH loads this file at its
start; `helpers.quick_torch` puts it there.
"""

import atexit
import gc
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, _Finder) if name == "torch._dynamo" else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        module.disable = lambda function=None, *_, **__: function or (lambda given: given)
        module.eval_frame = SimpleNamespace(OptimizedModule=type("OptimizedModule", (), {}))
        module.graph_break = lambda *_, **__: None
        module.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)
        module.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "")


sys.meta_path.insert(0, _Finder)
gc.set_threshold(200_000)
atexit.register(gc.freeze)
