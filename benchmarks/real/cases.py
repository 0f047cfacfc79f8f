"""The cases: which program meets which fault, and whom a judge may name for it."""

from __future__ import annotations

from dataclasses import dataclass

NODE, EITHER, NOBODY = "node", "node or nobody", "nobody"


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: Unique.
        kind: Its class in the table.
        fault: One of `faults.FAULTS`.
        ranks: Whom the fault strikes.
        right: NODE: the struck nodes are to be named, all of them and no other. EITHER: what holds the rank is the
            program's own doing, so its node may be named, or nobody. NOBODY: no node may be named.
        program: One of `rank.PROGRAMS`.
        where: Where the fault strikes (`rank`).
        world: Ranks.
        per_node: Of them on each node.
        every_s: From one capture to the next, without Slurm.
    """

    name: str
    kind: str
    fault: str
    ranks: tuple[int, ...] = (2,)
    right: str = NODE
    program: str = "reduce"
    where: str = "step"
    world: int = 4
    per_node: int = 1
    every_s: float = 2.5

    def node(self, rank: int) -> str:
        """Where a rank runs."""
        return f"n{rank // self.per_node}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes."""
        return tuple(dict.fromkeys(self.node(rank) for rank in range(self.world)))

    @property
    def struck(self) -> frozenset[str]:
        """The nodes that the fault strikes."""
        return frozenset(self.node(rank) for rank in self.ranks)


ALL = (0, 1, 2, 3)
CASES = (
    Case("loader-lock", "data loader", "python_lock", where="worker"),
    Case("loader-lock-ddp", "data loader", "python_lock", where="worker", program="ddp"),
    Case("loader-read", "data loader", "read_of_a_dead_file_system", where="worker"),
    Case("loader-stopped", "data loader", "stopped", where="worker"),
    Case("loader-network", "data loader", "silent_server", where="worker"),
    Case("loader-in-rank", "data loader", "read_of_a_dead_file_system", where="loader"),
    Case("loader-two-ranks", "data loader", "python_lock", ranks=(2, 3), where="worker", per_node=2, world=6),
    Case("read", "file system", "read_of_a_dead_file_system"),
    Case("read-ddp", "file system", "read_of_a_dead_file_system", program="ddp"),
    Case("flock", "file system", "file_lock"),
    Case("d-state", "file system", "uninterruptible"),
    Case("d-state-loader", "file system", "uninterruptible", where="worker"),
    Case("read-two-nodes", "file system", "read_of_a_dead_file_system", ranks=(1, 4), world=6),
    Case("stopped", "stopped", "stopped"),
    Case("stopped-ddp", "stopped", "stopped", program="ddp", ranks=(1,)),
    Case("stopped-pipeline", "stopped", "stopped", program="pipeline"),
    Case("stopped-grid", "stopped", "stopped", program="grid", ranks=(5,), world=8),
    Case("stopped-node", "stopped", "stopped", ranks=(2, 3), per_node=2, world=6),
    Case("killed", "dead", "killed"),
    Case("killed-first", "dead", "killed", ranks=(0,)),
    Case("killed-grid", "dead", "killed", program="grid", ranks=(3,), world=8),
    Case("crashed", "dead", "segmentation_fault", program="ddp"),
    Case("gpu-memory", "dead", "memory_error_of_the_gpu"),
    Case("pipeline-read", "point-to-point", "read_of_a_dead_file_system", program="pipeline"),
    Case("pipeline-last", "point-to-point", "silent_server", program="pipeline", ranks=(3,)),
    Case("grid-read", "parallel groups", "read_of_a_dead_file_system", program="grid", ranks=(5,), world=8),
    Case("grid-lock", "parallel groups", "python_lock", program="grid", ranks=(2,), world=8, right=EITHER),
    Case("lock", "held by the program", "python_lock", right=EITHER),
    Case("locks", "held by the program", "crossed_locks", right=EITHER),
    Case("queue", "held by the program", "dead_prefetcher", right=EITHER),
    Case("gil-sleep", "held by the program", "sleep_with_the_gil", right=EITHER),
    Case("gil-regex", "held by the program", "endless_regex", right=EITHER),
    Case("loop", "held by the program", "endless_loop", right=EITHER),
    Case("gil-regex-for-long", "endless work", "endless_regex", every_s=7.5),
    Case("loop-for-long", "endless work", "endless_loop", every_s=21.0),
    Case("child", "held by the program", "waiting_for_a_child", right=EITHER),
    Case("retries", "held by the program", "retries", right=EITHER),
    Case("breakpoint", "held by the program", "debugger_prompt", right=EITHER),
    Case("other-collective", "code fault", "other_collective", right=NOBODY),
    Case("other-shape", "code fault", "other_shape", right=NOBODY),
    Case("other-collective-ddp", "code fault", "other_collective", program="ddp", right=NOBODY),
    Case("both-receive", "code fault", "both_receive", ranks=ALL, right=NOBODY),
    Case("error", "code fault", "user_error", right=NOBODY),
    Case("error-all", "code fault", "user_error", ranks=ALL, right=NOBODY),
    Case("early-exit", "code fault", "clean_exit", right=NOBODY),
    Case("evaluation-all", "no fault", "evaluate", ranks=ALL, right=NOBODY),
    Case("evaluation-one", "no fault", "evaluate", ranks=(0,), program="barrier", right=NOBODY),
    Case("checkpoint-one", "no fault", "save_checkpoint", ranks=(0,), program="barrier", right=NOBODY),
    Case("checkpoint-all", "no fault", "save_checkpoint", ranks=ALL, right=NOBODY),
    Case("compilation", "no fault", "first_compilation", ranks=(0,), program="barrier", right=NOBODY),
    Case("long-sequence", "no fault", "long_sequence", program="ddp", right=NOBODY),
    Case("breakpoint-all", "shared cause", "debugger_prompt", ranks=ALL, right=NOBODY),
    Case("stopped-all", "shared cause", "stopped", ranks=ALL, right=NOBODY),
    Case("read-all", "shared cause", "read_of_a_dead_file_system", ranks=ALL, right=NOBODY),
)
QUICK = ("loader-lock", "stopped-grid", "other-collective", "evaluation-one")
ON_GPUS = (
    Case("stopped", "stopped", "stopped", program="ddp"),
    Case("read", "file system", "read_of_a_dead_file_system"),
    Case("loader-lock", "data loader", "python_lock", where="worker", program="ddp"),
    Case("endless-kernel", "GPU", "endless_kernel", right=EITHER),
    Case("killed", "dead", "killed", ranks=(1,)),
    Case("device-assert", "code fault", "device_side_assert", right=NOBODY),
    Case("gpu-memory", "dead", "memory_error_of_the_gpu", program="ddp"),
    Case("other-collective", "code fault", "other_collective", right=NOBODY),
    Case("grid-read", "parallel groups", "read_of_a_dead_file_system", program="grid", ranks=(5,), world=8),
    Case("evaluation-all", "no fault", "evaluate", ranks=ALL, right=NOBODY),
)
"""With NCCL, or gloo with tensors on GPUs: what is least certain there comes first."""
