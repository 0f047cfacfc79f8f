"""`scripts/gpu-proof`: rehearsed without a GPU, its time is shared out, and nothing that was found is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

from gpu_proof import __main__ as proof  # noqa: E402 (scripts are no package)
from gpu_proof import budget, outcome, page  # noqa: E402
from gpu_proof.outcome import PartOutcome, Status, Step  # noqa: E402


@pytest.mark.begin_early
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "parts", [("checks", "torch"), pytest.param(tuple(budget.PARTS), marks=pytest.mark.variant)], ids=["short", "all"]
)
def test_a_rehearsal_runs_every_part_without_a_gpu(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """Checks ask the fake NVML, tensors are on the CPU: every part comes to its end, and the page says what it is."""
    words = [str(ROOT / "scripts" / "gpu-proof"), "--rehearse", "--minutes", "3", "--out", "out", "--part", *parts]
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400, check=False)
    told = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert done.returncode == 0, (tmp_path / "out" / "proof.md").read_text()
    assert told["rehearsal"] is True
    assert [part["part"] for part in told["parts"]] == list(parts)
    for part in told["parts"]:
        assert not part["ended"], part
        assert any(step["status"] == "held" for step in part["steps"]), part
    assert "no GPU took part" in done.stdout


@given(st.floats(0, 10_000), st.lists(st.sampled_from(list(budget.PARTS)), min_size=1, unique=True))
def test_shares_never_sum_to_more_than_there_is(left_s: float, parts: list[str]) -> None:
    """Whatever parts are chosen, each gets its share of what is left, and the last gets all of it."""
    left = left_s
    for number, part in enumerate(parts):
        share = budget.limit_s(left, part, parts[number + 1 :])
        assert 0 <= share <= left
        left -= share
    assert left == pytest.approx(0, abs=1e-6)


def test_a_part_that_hangs_is_ended_and_keeps_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had found is on the page, and so is the reason of its end."""
    stub = tmp_path / "hanging.py"
    stub.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpu_proof import outcome, part_process\n"
        "outcome.write(Path(sys.argv[2]) / part_process.STEPS, outcome.Step('one', outcome.Status.HELD, 'well'))\n"
        "print('about to hang', flush=True)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(proof, "GRACE_S", 0.0)
    monkeypatch.setattr(proof, "PART_PROCESS", [sys.executable, str(stub)])
    proof.play("checks", tmp_path / "part", 3.0, rehearsal=True)
    (tmp_path / "part" / "left-over").mkdir()
    found = proof.play("checks", tmp_path / "part", 3.0, rehearsal=True)
    assert not (tmp_path / "part" / "left-over").exists(), "a second run begins with an empty folder"
    assert [step.name for step in found.steps] == ["one"]
    assert found.ended == "out of time (3 s)"
    assert found.failed
    assert "about to hang" in page.to_markdown({}, [found], rehearsal=False)


def test_half_a_line_costs_that_step_alone(tmp_path: Path) -> None:
    """A part that was killed while it wrote leaves half a line."""
    path = tmp_path / "steps"
    outcome.write(path, Step("one", Status.HELD, "well", {"took_ms": 3}))
    with path.open("a") as file:
        file.write('{"name": "tw')
    assert outcome.read(path) == (Step("one", Status.HELD, "well", {"took_ms": 3}),)
    assert outcome.read(tmp_path / "nothing") == ()


def test_the_page_says_what_failed() -> None:
    """A failed step stands out, a bar in a sentence breaks no table, and the output is below."""
    step = Step("a check", Status.FAILED, "this | that")
    text = page.to_markdown({"driver": "1"}, [PartOutcome("checks", (step,), "", 1.0, "its output")], rehearsal=False)
    assert "| a check | **FAILED** | this \\| that | 0.0 |" in text
    assert "its output" in text
    assert "rehearsal" not in text
