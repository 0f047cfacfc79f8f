"""A list of nodes that a user or a peer wrote is counted before it is unfolded."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.slurm import job_gpus, values
from slurm_robust.slurm.errors import SlurmParseError

BOMBS = (
    "n[1-8000000]",
    "n[0-262144]",
    "n[1-1000]x[1-1000]",
    "a[1-140000],b[1-140000]",
    "n[1-99999999,100000000-999999999]",
    "[0-9]" * 8,
    ",".join(["n[1-60000]"] * 50),
)


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:24])
def test_a_list_of_too_many_nodes_is_refused_before_it_is_unfolded(text: str) -> None:
    """In no time and no memory, as a list and as one name among others."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (400 << 20,) * 2)\n"
    code = f"""{limit}
from slurm_robust.slurm import values
from slurm_robust.slurm.errors import SlurmParseError
for read in (values.expand, lambda t: values.expand(t, remember=False), lambda t: values.fold([t, "n1"])):
    try:
        read({text!r})
    except SlurmParseError:
        pass
    else:
        raise SystemExit("unfolded")
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


def test_the_largest_site_is_still_read() -> None:
    """262,144 names in each form of list."""
    assert len(values.expand("n[1-262144]")) == 262_144
    assert len(values.expand("n[1-512]x[1-512]", remember=False)) == 262_144
    assert values.fold(["n[1-3]", "n5"]) == "n[1-3,5]"


REAL = " MCS_label=N/A Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:fake:1(IDX:0) MinCPUsNode=1 "


def test_a_jobs_name_cannot_make_the_reader_of_gpus_unfold_millions() -> None:
    """The name is taken out where it stands, so that it names neither a node nor a GPU."""
    name = "x Nodes=n[1-8000000] CPU_IDs=0 Mem=0 GRES=gpu:fake:2(IDX:5) Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu(IDX:7)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = job_gpus.parse(f"JobId=7 JobName={name} UserId=a(1){REAL}", name, ("n1", "n2"))
    assert found == {"n1": {0}, "n2": {0}}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_comment_cannot_make_the_reader_of_gpus_unfold_for_minutes() -> None:
    """Ten thousand lists behind Slurm's own cost no more than those that Slurm could have written."""
    tail = " Nodes=n[1-60000] CPU_IDs= Mem= GRES=" * 10_000
    began_s = time.process_time()
    assert job_gpus.parse(f"JobId=7 JobName=a UserId=a(1){REAL}{tail}", "a", ("n1", "n2")) == {"n1": {0}, "n2": {0}}
    tail = " Nodes=n[1-2000] CPU_IDs= Mem= GRES=" * 10_000
    own = [f"n{k}" for k in range(1, 2001)]
    assert job_gpus.parse(f"JobId=7 JobName=a UserId=a(1){REAL}{tail}", "a", own)["n1"] == {0}
    assert time.process_time() - began_s < 3


def test_a_folder_or_comment_names_no_node_that_is_not_the_jobs() -> None:
    """Such a text stands behind Slurm's own; another node's GPUs are never taken from it."""
    tail = "Comment=x Nodes=n[1-8000000] CPU_IDs=0 Mem=0 GRES=gpu(IDX:7) Nodes=n9 CPU_IDs=0 Mem=0 GRES=gpu(IDX:7)"
    assert job_gpus.parse(f"JobId=7 JobName=a UserId=a(1){REAL}{tail}", "a", ("n1", "n2")) == {"n1": {0}, "n2": {0}}


TEXT = st.text(max_size=80) | st.text("Nodes=n[1-9],CPU_IDMem GRSgpu:(X)0 UserId", max_size=120)


@given(TEXT, TEXT)
def test_no_texts_of_a_job_change_where_its_gpus_are(name: str, comment: str) -> None:
    """Whatever its owner calls it: the name hides nothing and adds nothing; the comment hides nothing."""
    found = job_gpus.parse(f"JobId=7 JobName={name} UserId=a(1){REAL}Comment={comment}", name, ("n1", "n2"))
    assert set(found) == {"n1", "n2"}
    assert all(0 in numbers for numbers in found.values())


def test_a_name_that_changed_between_two_calls_is_no_answer() -> None:
    """Then nobody knows where the name ends."""
    with pytest.raises(SlurmParseError):
        job_gpus.parse(f"JobId=7 JobName=new UserId=a(1){REAL}", "old", ("n1",))
