"""Digests of one step: within each class the majority is right where it has one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.stoptime.alignment import AlignmentVerdict, StepDigests, StepError, judge


def device(node: str, *digests: str, hardware: str = "A", name: str = "cuda:0") -> StepDigests:
    """What a device came to."""
    return StepDigests(node, name, hardware, digests)


def test_all_the_same_is_all_well() -> None:
    """Two classes that agree within themselves have nothing to say about each other."""
    found = [device(f"n{i}", "x", "x") for i in range(3)] + [device(f"m{i}", "y", "y", hardware="B") for i in range(2)]
    assert judge(found) == AlignmentVerdict()


def test_the_odd_one_of_three_is_named_with_device_and_class() -> None:
    """Its node, which device, in how many steps, and how many agree against it."""
    verdict = judge([device("n1", "x", "x"), device("n2", "y", "y", name="cuda:5"), device("n3", "x", "x")])
    assert verdict.broken == {"n2": "cuda:5 computed other bits in 2 of 2 steps; 2 of 3 devices of its class agree (A)"}


def test_a_fault_that_comes_and_goes_is_found_by_the_repeats() -> None:
    """One wrong step of three is enough, where most of its class agree."""
    verdict = judge([device("n1", "x", "x", "x"), device("n2", "x", "z", "x"), device("n3", "x", "x", "x")])
    assert "other bits in 1 of 3 steps" in verdict.broken["n2"]


def test_two_that_disagree_are_undecided_and_one_alone_is_untested() -> None:
    """No majority names nobody."""
    verdict = judge([device("n1", "x"), device("n2", "y"), device("n3", "q", hardware="B")])
    assert verdict.broken == {}
    assert list(verdict.undecided) == [("n1", "n2")]
    assert verdict.untested == {"n3": "no other device of its class to compare with (B)"}


def test_a_class_in_which_nobody_agrees_with_itself_is_undecided() -> None:
    """A library that is not deterministic breaks all devices alike: that is no node's fault."""
    verdict = judge([device(f"n{i}", f"{i}a", f"{i}b") for i in range(4)])
    assert verdict.broken == {}
    assert len(verdict.undecided) == 1


def test_a_crash_names_the_device_and_a_lack_of_memory_does_not() -> None:
    """Where two others come to a result; alone, a crash may be the library's."""
    well = [device("n1", "x"), device("n2", "x")]
    crash = StepError("n3", "cuda:1", "AcceleratorError: CUDA error: uncorrectable ECC error encountered")
    memory = StepError("n4", "cuda:0", "OutOfMemoryError: CUDA error: out of memory")
    verdict = judge(well, [crash, memory])
    assert list(verdict.broken) == ["n3"]
    assert verdict.untested == {"n4": "cuda:0: OutOfMemoryError: CUDA error: out of memory"}
    assert judge(well[:1], [crash]).broken == {}


@given(
    st.integers(3, 30).flatmap(
        lambda count: st.tuples(
            st.just(count), st.lists(st.integers(0, count - 1), unique=True, max_size=(count - 1) // 2)
        )
    )
)
def test_fewer_than_half_are_named_all_of_them_and_nobody_else(case: tuple[int, list[int]]) -> None:
    """Whatever bits the broken devices come to, also the same wrong ones."""
    count, broken = case
    found = [device(f"n{i}", *(("bad",) * 3 if i in broken else ("right",) * 3)) for i in range(count)]
    assert set(judge(found).broken) == {f"n{i}" for i in broken}
