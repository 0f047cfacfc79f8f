"""How do I add a node check?

The groups of checks: `gpu`, `host`, `network`, and `torch` for checks that compute.

1. Write `checks/<group>/<name>.py`; the smallest complete example is `checks/network/loopback.py`. The first line of
   its docstring is the question that it answers. `probe(context, options)` reads facts (plain JSON values, paths by
   `context.path`); it runs in a process of its own and may hang or crash. `judge(facts, options)` is pure and returns
   a `Finding`. `check = Check(**Check.parts_of(__name__), …)` says what it reads and costs, and its options; each
   default names its source.
2. Add the name to `GROUPS` in `engine/registry.py`, and to `_NOT_IN` for each stage that does not run it.
3. Test it on saved trees, healthy and broken, in `tests/nodecheck/<group>/`.
4. Run `python -m slurm_robust.nodecheck.catalogue.explain docs/checks.md`.

Optional functions of the module: `remember(facts, options)` returns what the next run gets back (`check_state.since`;
`engine/counters.py` and `engine/windows.py` compare counters, `engine/streaks.py` conditions that last);
`validate(options)` refuses options that make no sense, which `srobust check --list` asks of every check;
`valid_while(facts, options)` says under which conditions a prolog may skip the check (`stages/fast_path.py`). A GPU
check asks NVML: `checks/gpu/gpu_persistence.py` is the smallest. Checks with several faults use `engine/faults.py`.
"""

from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.engine.registry import Check, CheckError, Facts, Option, Options

__all__ = ["Check", "CheckError", "Context", "Facts", "Finding", "Option", "Options", "Status"]
