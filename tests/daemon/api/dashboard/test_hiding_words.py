"""Hidden names of jobs within sentences: no name is shown, and no word of a sentence of our own is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_robust.daemon.api.dashboard.hiding import Hiding

OURS = (
    "the loss is bad: loss nan at step 40",
    "job 12 of ann has made no progress for 5 min, and nothing is done about it (observe mode): srobust incidents 12",
    "rank 1 on n1 is in D state, and ranks 0,2-3 wait for it: spare in allocation",
    "the job is held, and the job that waits leaves n1 out; no data from /dev/shm or /proc/1/stack",
    "XID 79 (GPU has fallen off the bus) on GPU 3 of n1: reboot it",
)
WORDS = sorted({word for text in OURS for word in text.replace(":", " ").replace(",", " ").split() if word.isalnum()})


def test_an_ordinary_word_is_no_name() -> None:
    """The loss is still nan where a job has that name."""
    jobs = [{"job": "1", "name": "nan", "why": OURS[0]}, {"job": "2", "name": "rank", "why": OURS[2]}]
    shown = Hiding(("jobs",)).hidden({"jobs": jobs})
    assert [job["why"] for job in shown["jobs"]] == [OURS[0], OURS[2]]


@example(["12 of"])
@example(["n1 is"])
@given(st.lists(st.sampled_from(WORDS) | st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)).map(" ".join)))
def test_no_name_changes_a_sentence_of_our_own(names: list[str]) -> None:
    """Whatever words and pairs of words of these sentences jobs are called, node names and numbers included."""
    rows = [{"job": str(number), "name": name} for number, name in enumerate(names)]
    incidents = [{"id": str(number), "why": text} for number, text in enumerate(OURS)]
    state = {"nodes": [{"name": "n1", "node_state": "idle"}], "jobs": rows, "incidents": incidents}
    assert [incident["why"] for incident in Hiding(("jobs",)).hidden(state)["incidents"]] == list(OURS)


@given(st.from_regex(r"[A-Za-z0-9]{1,12}([ _.-][A-Za-z0-9]{1,12}){0,3}", fullmatch=True))
def test_what_stands_as_a_name_is_hidden(name: str) -> None:
    """Quoted; and one that is no plain word or number wherever it stands."""
    texts = ["see '{}' there", 'the job "{}" waits', "JobName=`{}`"]
    if any(mark in name for mark in "_.-"):
        texts.append("broken by {}, says a person")
    rows = [{"job": "1", "name": name}, *({"job": "2", "name": "other", "why": text.format(name)} for text in texts)]
    shown = Hiding(("jobs",)).hidden({"jobs": rows})["jobs"][1:]
    assert [row["why"] for row in shown] == [text.format("hidden") for text in texts]


@pytest.mark.parametrize("text", ["reserved for job llama", "Job llama ended", "No such file: /home/u/llama/a.pt"])
def test_an_ordinary_name_behind_job_or_in_a_path_is_hidden(text: str) -> None:
    """A person's words, and a program's."""
    shown = Hiding(("jobs",)).hidden({"jobs": [{"job": "1", "name": "llama", "why": text}]})["jobs"][0]["why"]
    assert shown == text.replace("llama", "hidden")


def test_users_are_hidden_wherever_they_stand() -> None:
    """Their names are no words of our sentences, and our sentences name them."""
    row = {"job": "1", "name": "x", "user": "ann", "why": OURS[1]}
    assert "ann" not in Hiding(("users",)).hidden({"jobs": [row]})["jobs"][0]["why"]
