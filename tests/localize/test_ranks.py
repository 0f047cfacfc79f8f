from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.localize.ranks import fold, name, unfold


@given(st.sets(st.integers(0, 5000), max_size=200))
def test_fold_and_back(ranks: set[int]) -> None:
    """Folding loses nothing, and what is folded is as short as it can be: no two ranges touch."""
    text = fold(ranks)
    assert set(unfold(text)) == ranks
    bounds = [part.partition("-") for part in text.split(",") if part]
    ends = [(int(low), int(high or low)) for low, _, high in bounds]
    assert all(a[1] + 1 < b[0] for a, b in pairwise(ends))


def test_as_people_write_it() -> None:
    """The form of Slurm's and STAT's users."""
    assert fold([5, 0, 1, 2]) == "0-2,5"
    assert fold([]) == ""
    assert name([3]) == "rank 3"
    assert name([4, 3]) == "ranks 3-4"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-999999999"])
def test_no_set_of_ranks(text: str) -> None:
    """Nonsense, and ranges that would fill the memory, are refused with the part that is wrong."""
    with pytest.raises(ValueError, match="not a r"):
        unfold(text)
