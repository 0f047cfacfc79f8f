"""What all ranks go on from: the newest save that is complete, wherever its shares are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.saving.restart.copy_choice import PLACES, Share, choose, description
from slurm_robust.checkpoint.saving.shared.image import Note

WORLD = 3


def share(step: int, rank: int, place: str = "memory", node: str = "n1", metadata: bool | None = None) -> Share:
    """Of a world of three; rank 0 has the metadata."""
    return Share(
        note=Note(f"save-{step}", step, f"step-{step}", 1.0 * step),
        plan="p",
        world_size=WORLD,
        rank=rank,
        file=f"__{rank}_0.distcp",
        has_metadata=rank == 0 if metadata is None else metadata,
        place=place,
        at=rank,
        node=node,
        where="0",
        digest=b"",
    )


SHARES = st.builds(share, st.integers(1, 4), st.integers(0, WORLD - 1), st.sampled_from(PLACES))


@given(st.lists(SHARES, max_size=25), st.sets(st.integers(0, 24)))
def test_the_newest_that_is_complete(shares: list[Share], spoilt: set[int]) -> None:
    """Complete means: each rank's share is somewhere, and is not wrong. The best place of each is taken."""
    wrong = [one for number, one in enumerate(shares) if number in spoilt]
    good = [one for one in shares if one not in wrong]
    complete = [step for step in range(1, 5) if {one.rank for one in good if one.note.step == step} == {0, 1, 2}]
    choice = choose(shares, wrong)
    assert (choice.note.step if choice else None) == max(complete, default=None)
    if choice is None:
        return
    assert [one.rank for one in choice.shares] == [0, 1, 2]
    for one in choice.shares:
        others = [other for other in good if (other.note, other.rank) == (one.note, one.rank)]
        assert PLACES.index(one.place) == min(PLACES.index(other.place) for other in others)


def test_what_does_not_belong_together_is_not_mixed() -> None:
    """The same step of two runs, or of two plans, makes no checkpoint."""
    other = share(7, 2)._replace(note=Note("another-run", 7, "step-7", 7.0))
    assert choose([share(7, 0), share(7, 1), other]) is None
    assert choose([share(7, 0), share(7, 1), share(7, 2)._replace(plan="q")]) is None
    assert choose([share(7, 0), share(7, 1), share(7, 2)], refused=["save-7"]) is None


def test_metadata_is_needed_once() -> None:
    """The share that it lies beside is taken then, even where a nearer one is."""
    shares = [share(7, rank, metadata=False) for rank in range(WORLD)]
    assert choose(shares) is None
    backup = share(7, 1, "backup", metadata=True)
    choice = choose([*shares, backup])
    assert choice is not None
    assert choice.metadata == backup


def test_people_read_where_each_share_comes_from() -> None:
    """Ranks by place, and for a backup or a disk by node."""
    choice = choose([share(7, 0), share(7, 1), share(7, 2, "backup", "n9")])
    assert choice is not None
    assert description(choice) == "continues from step 7: ranks 0-1 from memory; rank 2 from the backup on n9"
    assert choice.places == ("memory", "backup")


def test_of_two_backups_those_are_taken_that_burden_no_node() -> None:
    """Two lost nodes, whose ranks are on the same two others: each of these gives one share."""
    both = [share(7, rank, "backup")._replace(at=at, node=f"n{at}") for rank in (0, 1) for at in (2, 3)]
    choice = choose([share(7, 2, metadata=True), *both])
    assert choice is not None
    assert sorted(one.at for one in choice.shares if one.place == "backup") == [2, 3]
