from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.rank import copying

SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), max_size=12), st.integers(1, 5000))
def test_units_cover_everything_once(kinds: list[tuple[tuple[int, ...], torch.dtype, bool]], unit_bytes: int) -> None:
    """Whatever the shapes and strides are, copying all units copies all tensors, and no element twice."""
    sources = []
    for shape, dtype, turned in kinds:
        made = torch.randint(0, 2, shape).to(dtype)
        sources.append(made.permute(tuple(reversed(range(made.dim())))) if turned else made)
    targets = [torch.full(source.shape, 1, dtype=source.dtype) for source in sources]
    cut = copying.units(targets, sources, unit_bytes)
    assert sum(one.numel() for pair in cut for one in pair[1]) == sum(one.numel() for one in sources)
    for pair in cut:
        torch._foreach_copy_(*pair)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_all_is_copied_when_it_returns(threads: int) -> None:
    """By any number of threads, parameters too, large and small and none; half of it is told once, on this thread."""
    sources = [torch.nn.Parameter(torch.randn(18_000_000)), torch.randn(900, 901).t(), torch.tensor(3.0)]
    sources += [torch.randn(n) for n in range(300)]
    targets = [torch.empty_like(source) for source in sources]
    told: list[int] = []
    copying.copy(targets, sources, threads, lambda: told.append(threading.get_ident()))
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))
    assert told == [threading.get_ident()]
    copying.copy([], [], threads)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at", [0, 150, 299])
def test_what_cannot_be_copied_is_raised(threads: int, at: int) -> None:
    """No copy passes for complete where torch refused a part of it, whichever thread had that part."""
    sources = [torch.randn(60_000) for _ in range(300)]
    targets = [torch.empty(60_000 if n != at else 7) for n in range(300)]
    with pytest.raises(RuntimeError):
        copying.copy(targets, sources, threads)


def test_a_thread_that_never_runs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node another thread may not get a core before all is copied: then there is nothing left for it."""
    late: list[Callable[[], None]] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda what, _: late.append(what))
    sources = [torch.randn(4_000_000) for _ in range(5)]
    targets = [torch.empty(4_000_000) for _ in range(5)]
    copying.copy(targets, sources, 3)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))
    for target in targets:
        target.zero_()
    for what in late:
        what()
    assert not any(target.any() for target in targets)


def test_without_another_thread_this_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes costs speed and nothing else."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    sources = [torch.randn(4_000_000) for _ in range(5)]
    targets = [torch.empty(4_000_000) for _ in range(5)]
    copying.copy(targets, sources, 4)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


@pytest.mark.parametrize(
    ("cores", "of", "env", "threads"),
    [
        (64, 64, {}, 4),
        (64, 64, {"LOCAL_WORLD_SIZE": "8"}, 4),
        (64, 64, {"LOCAL_WORLD_SIZE": "32"}, 2),
        (8, 64, {"SLURM_STEP_TASKS_PER_NODE": "8(x3)"}, 4),  # bound: eight cores each
        (2, 2, {"SLURM_STEP_TASKS_PER_NODE": "4"}, 1),
        (1, 64, {}, 1),
        (3, 4, {"LOCAL_WORLD_SIZE": "no number"}, 3),
        (2, 4, {"LOCAL_WORLD_SIZE": "0"}, 2),
    ],
)
def test_threads_are_this_ranks_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, of: int, env: dict[str, str], threads: int
) -> None:
    """A rank's share of the cores it may run on, and not more than a few."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(os, "cpu_count", lambda: of)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert copying.threads_here(env) == threads


def test_torchs_own_threads_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch copies by several threads of its own, ours would fight them for the same cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert copying.threads_here({}) == 1


def test_what_another_thread_cannot_copy_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked process torch sometimes has no pool of threads for a new one: that costs speed, and no save."""
    real, first = copying.here, threading.get_ident()

    def here(into: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        if threading.get_ident() != first:
            raise RuntimeError("Invalid thread pool!")
        real(into, out)

    monkeypatch.setattr(copying, "here", here)
    for _ in range(5):
        sources = [torch.randn(4_000_000) for _ in range(8)]
        targets = [torch.zeros(4_000_000) for _ in range(8)]
        going = copying.ThreadedCopy(targets, sources, 2)
        going.wait()
        assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))
