"""By which number a training of a batch script is known in each attempt of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.launch.run_place import step_place


@pytest.mark.parametrize(
    ("seen", "places"),
    [
        ([(0, 0), (0, 2), (1, 0), (1, 2)], [0, 2, 0, 2]),  # a requeue numbers anew
        ([(0, 0), (1, 5), (2, 0)], [0, 0, 0]),  # a node failure does not, the requeue after it does
        ([(0, 0), (0, 2), (1, 4), (1, 7)], [0, 2, 0, 3]),
        ([(0, 1), (1, 4)], [1, 1]),  # the script begins with a step that nobody sees
        ([(0, 0), (1, 1)], [0, 1]),  # two steps of a script that was requeued before the second
        ([(0, 3), (0, 3), (1, 9), (1, 9)], [3, 3, 3, 3]),  # a watch that was started again
    ],
)
def test_a_step_is_known_by_the_same_number_in_each_attempt(
    tmp_path: Path, seen: list[tuple[int, int]], places: list[int]
) -> None:
    """Each is (restart of the job, number of its step), in the order in which the watches begin."""
    folder = IncidentFolder(tmp_path / "story")
    assert [step_place(folder, restart, step) for restart, step in seen] == places


def test_a_folder_that_cannot_be_read_leaves_the_number_as_it_is(tmp_path: Path) -> None:
    """And so does a file with something else in it."""
    folder = IncidentFolder(tmp_path / "story")
    folder.append("steps", "garbage\n1 2 3\n")
    assert step_place(folder, 0, 4) == 4
    (tmp_path / "file").touch()
    assert step_place(IncidentFolder(tmp_path / "file" / "story", quiet=True), 1, 4) == 4
