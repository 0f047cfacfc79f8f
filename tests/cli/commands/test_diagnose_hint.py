"""`srobust diagnose --hint` and `srobust diagnose rules --review`, with a model on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from llm_server import answers, serving

from slurm_robust.cli.commands.diagnose import command

LOG = "step 1\nRuntimeError: flux /home/ann/x.bin is not aligned: 7\nbye\n"
SAYS = answers("storage", 2, "The flux lost its storage.", r"flux .* is not aligned: \d+", "flux a is not aligned: 9")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose error no rule knows."""
    path = tmp_path / "job.out"
    path.write_text(LOG)
    return path


def run(*words: object) -> Result:
    """`srobust diagnose WORDS`."""
    return CliRunner().invoke(command, [str(word) for word in words])


def site(tmp_path: Path, url: str) -> Path:
    """A robust.yaml with this endpoint."""
    path = tmp_path / "robust.yaml"
    llm = {"url": url, "model": "m", "samples": 3, "timeout_s": 30, "review_dir": str(tmp_path / "review")}
    path.write_text(json.dumps({"diagnose": {"llm": llm}}))
    return path


def test_from_a_hint_to_an_accepted_rule(tmp_path: Path, log: Path) -> None:
    """Asked, shown, proposed, reviewed, accepted; from then on the rule knows, and nobody is asked."""
    with serving(SAYS) as server:
        config = site(tmp_path, server.url)
        shown = run(log, "--hint", "--config", config)
        assert shown.exit_code == 0
        assert "asks m at 127.0.0.1:" in shown.stderr
        assert "3 times within 30 s" in shown.stderr
        assert "runtime: " in shown.stdout, "the diagnosis stays the rules' own"
        assert "perhaps storage: The flux lost its storage." in shown.stdout
        assert "3 of 3 answers of m agree; a guess, not a finding" in shown.stdout
        assert f"{log}:2" in shown.stdout
        assert "a rule is proposed" in shown.stdout
        sent = json.dumps(server.asked)
        assert "<path>/x.bin" not in json.dumps(server.headers)
        assert "ann/" not in sent
        assert "flux <path>/x.bin" in sent
        (proposal,) = json.loads(run("rules", "--review", "--json", "--config", config).stdout)
        assert proposal["category"] == "storage"
        assert proposal["confidence"] == 1.0
        listed = run("rules", "--review", tmp_path / "review")
        assert proposal["id"] in listed.stdout
        assert r"pattern: flux .* is not aligned: \d+" in listed.stdout
        rules = tmp_path / "site.yaml"
        done = run("rules", "--review", tmp_path / "review", "--accept", proposal["id"], "--rules", rules)
        assert (done.exit_code, done.stdout) == (0, f"{proposal['id']} is now a rule of {rules}\n")
        assert run("rules", "--check", rules).stdout == f"{rules}: 1 rules, all right\n"
        asked = len(server.asked)
        told = json.loads(run(log, "--hint", "--json", "--config", config, "--rules", rules).stdout)
        assert (told["category"], told["root"]["rule"]) == ("storage", proposal["id"])
        assert told["hint"]["reason"] == "not asked: a rule knows what broke"
        assert len(server.asked) == asked
    assert "no proposal waits" in run("rules", "--review", tmp_path / "review").stdout


def test_tools_get_the_hint_beside_the_diagnosis(tmp_path: Path, log: Path) -> None:
    """Under `hint`; the exit code is the diagnosis's own."""
    log.write_text("step 1\nflux is not aligned\n")
    with serving(answers("storage", 2)) as server:
        done = run(log, "--hint", "--json", "--config", site(tmp_path, server.url))
    assert done.exit_code == 1, "a hint is no root"
    told = json.loads(done.stdout)
    assert (told["category"], told["root"]) == ("unknown", None)
    hint = told["hint"]
    assert (hint["category"], hint["confidence"], hint["agreeing"], hint["samples"]) == ("storage", 1.0, 3, 3)
    assert hint["line"] == {"file": str(log), "line": 2, "text": "flux is not aligned"}
    assert hint["asked"].startswith("127.0.0.1:")
    assert hint["no_proposal"].startswith("no rule is proposed")


def test_the_page_has_the_end_of_each_file(tmp_path: Path, log: Path) -> None:
    """Also where one is long, and where times put the lines of several in order."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{name}{n} idle\n" for n in range(1000)) + f"{name} stopped\n")
    page = run(log, tmp_path / "a", tmp_path / "b", "--hint-page").stdout
    for shown in ("flux <path>/x.bin is not aligned", "| a stopped", "| b stopped"):
        assert shown in page
    for rank in (1, 2):
        lines = [f"2026-01-02 03:04:{second:02} rank {rank} idle" for second in range(rank, 50, 2)]
        (tmp_path / f"r{rank}").write_text("\n".join([*lines, f"2026-01-02 03:05:0{rank} rank {rank} stopped"]))
    page = run(tmp_path / "r1", tmp_path / "r2", "--hint-page").stdout
    assert "rank 1 stopped" in page
    assert "rank 2 stopped" in page


def test_nothing_is_asked_without_the_option_or_the_endpoint(tmp_path: Path, log: Path) -> None:
    """The page can be read without either."""
    with serving(SAYS) as server:
        config = site(tmp_path, server.url)
        assert json.loads(run(log, "--json").stdout)["hint"] is None
        page = run(log, "--hint", "--hint-page", "--config", config).stdout
        assert "2| RuntimeError: flux <path>/x.bin is not aligned: 7" in page
        assert "- gpu_ecc: " in page
        assert server.asked == []
    config.write_text("mode: observe\n")
    told = run(log, "--hint", "--config", config)
    assert "hint:       none: not asked: diagnose.llm.url in robust.yaml names no endpoint" in told.stdout
    assert told.exit_code == 0


def test_an_endpoint_that_fails_costs_a_sentence(tmp_path: Path, log: Path) -> None:
    """The diagnosis is there, with its own exit code."""
    with serving() as server:
        config = site(tmp_path, server.url)
    told = run(log, "--hint", "--config", config)
    assert told.exit_code == 0
    assert "runtime: " in told.stdout
    assert "hint:       none: 127.0.0.1:" in told.stdout
    assert "cannot be asked: Connection refused" in told.stdout
    config.write_text(config.read_text().replace("http://", "gopher://"))
    assert "not asked: diagnose.llm.url must begin with" in run(log, "--hint", "--config", config).stdout


def test_wrong_words_end_with_two(tmp_path: Path, log: Path) -> None:
    """Accepting needs a folder, a file and an id that is there; a configuration must be right."""
    config = tmp_path / "wrong.yaml"
    config.write_text("diagnose: {llm: {samples: 0}}")
    for words in ([log, "--hint"], [log, "--hint-page"], ["rules", "--review"]):
        done = run(*words, "--config", config)
        assert done.exit_code == 2
        assert "diagnose.llm.samples" in done.stderr
    for words in (["--accept", "x"], ["--rules", "f"], ["--review", tmp_path, "--accept", "x"],
                  ["--review", tmp_path, "--accept", "../x", "--rules", tmp_path / "f"]):  # fmt: skip
        done = run("rules", *words)
        assert done.exit_code == 2, done.output
    assert not (tmp_path / "f").exists()
