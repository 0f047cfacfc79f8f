"""A short slice of each benchmark: its figures are there, and of the right kind. How fast it was is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from spank_build import need_compiler

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(program: str, *options: str) -> dict[str, Any]:
    """The object that a benchmark prints."""
    command = [sys.executable, str(BENCHMARKS / program), "--json", "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_supervision_without_slurm() -> None:
    """One call takes well under a millisecond; many agents are understood and cost part of a core."""
    found = run("supervision.py", "--only", "call,crowd")
    figures = found["figures"]
    call = figures["progress_step_ns"]
    assert 10 < call["min"] <= call["median"] <= call["max"] < 1_000_000
    crowd = figures["crowd_train_1_a_second"]
    assert 0 < crowd["cpu_share"] < 1
    assert crowd["messages_per_s"] > figures["crowd_agents"] / 2
    measured = {t["name"] for t in found["targets"] if t["met"] is not None}
    assert figures["progress_timing_ns"]["median"] < 1_000_000
    assert 0 < figures["crowd_timed_1_a_second"]["cpu_share"] < 1
    assert len(measured) == 2, "step time and memory were not measured, and must not look as if they were"


@pytest.mark.slurm
def test_supervision_on_a_real_slurm() -> None:
    """Watch step, capture and an agent's memory on four nodes."""
    many = run("supervision.py", "--only", "nodes")["figures"]["many_nodes"]
    assert many["ranks"] == many["nodes"] == 4
    assert 0 < many["watch_start_s"]["median"] <= many["ranks_known_s"]["median"] < 30
    assert 0 < many["capture_s"]["median"] < 30
    assert 4 < many["agent_pss_mib"] <= many["agent_rss_mib"] <= many["agent_peak_mib"] < 60
    assert 0 < many["agent_cpu_share"] < 1


@pytest.mark.slurm
def test_launches_with_the_spank_plugin() -> None:
    """A launch of each kind, and what the plugin adds."""
    need_compiler()
    figures = run("spank.py")["figures"]
    for name in ("without", "unused", "robust", "srobust_run"):
        assert 0 < figures[f"{name}_s"]["median"] < 60
        assert figures[f"{name}_s"]["n"] == 2


@pytest.mark.begin_early
@pytest.mark.slurm
@pytest.mark.e2e
@pytest.mark.variant
def test_restart_inside_an_allocation() -> None:
    """One stopped rank, one spare node: every time of the incident is there, in order, beside a bare start."""
    figures = run("restart.py", "--only", "spare")["figures"]
    times = figures["roads"]["spare"]["repeats"][0]["times"]
    order = ("fault", "suspected", "captured", "decided", "stopped", "ranks_started", "imports_done", "first_new_step")
    assert all(times[a] <= times[b] for a, b in pairwise(order)), times
    assert 0 < figures["bare_start_s"]["median"] < 30
    assert 0 < figures["roads"]["spare"]["decision_to_running_s"]["median"] < 60
    assert figures["roads"]["spare"]["own_share_s"]["n"] == 1


@pytest.mark.parametrize(
    "program", ["restart.py", "supervision.py", "checkpoint.py", "stoptime.py", "daemon.py", "report.py"]
)
def test_an_unknown_part_is_wrong_usage(program: str) -> None:
    """Nothing is started; the parts there are are named."""
    command = [sys.executable, str(BENCHMARKS / program), "--only", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "nonsense: there are" in done.stderr


@pytest.mark.slurm
def test_cost_of_an_idle_daemon() -> None:
    """On a small site: shares, memory and calls, which are about one a second."""
    found = run("daemon.py", "--only", "idle", "--nodes", "60")
    (site,) = found["figures"]["sites"]
    idle = site["idle"]
    assert 0 <= idle["own_percent"] <= idle["daemon_percent"] < 100, "of a few seconds, counted in hundredths"
    assert 0 <= idle["slurmctld_percent"] < 100
    assert 0 < idle["calls_a_second"] < 3
    assert 10 < idle["rss_mib"] < 150
    assert not found["targets"], "10,000 nodes were not measured"


@pytest.mark.variant
def test_a_report_of_a_month() -> None:
    """The report of a small month, whose journal and sacct's answers are files, says what is true."""
    found = run("report.py", "--only", "report")
    figures = found["figures"]["report"]
    for name, both in figures["beside_truth"].items():
        assert both["report"] == pytest.approx(both["truth"], rel=1e-4), name
    assert figures["doubts"] == []
    assert 0 < figures["page"]["processor_s"]["median"] <= figures["page"]["took_s"]["median"] * 16
    assert 20 < figures["json"]["memory_mib"]["max"] < 500
    measured = [t["name"] for t in found["targets"] if t["met"] is not None]
    assert len(measured) == 2, "the dashboard was not measured"


@pytest.mark.variant
@pytest.mark.slurm
def test_a_storm_of_claims() -> None:
    """Every claim is planned, while the plans of others are carried out."""
    (site,) = run("daemon.py", "--only", "incidents,storm", "--nodes", "60")["figures"]["sites"]
    busy, storm = site["incidents"], site["storm"]
    assert 0 <= busy["daemon_percent"] < 100
    assert (storm["claims"], storm["planned"], storm["undecided"]) == (6, 6, 0)
    assert 0 < storm["decided_s"]["median"] < 60


@pytest.mark.variant
@pytest.mark.slurm
def test_restart_without_a_prolog_at_allocation() -> None:
    """The seat as Slurm has it by default: the node checks run before a node's first step, and the job comes back."""
    found = run("restart.py", "--only", "bare,no_alloc")
    times = found["figures"]["roads"]["no_alloc"]["repeats"][0]["times"]
    assert times["decided"] < times["requeued"] < times["running"] < times["first_new_step"]


@pytest.mark.variant
def test_localize_campaign_twice(tmp_path: Path) -> None:
    """Every class and method has its figures; the same seeds give the same ones again, whatever the processes."""
    saved = tmp_path / "figures.json"
    found = run("localize_campaign.py", "--ablate", "2", "--jobs", "1", "--save", str(saved))
    figures = found["figures"]
    assert {t["name"] for t in found["targets"]} >= {"wrong node, worst class"}
    for method in ("slurm-robust", "lowest progress alone", "without judge_exits"):
        assert {kind: told["cases"] for kind, told in figures[method].items()}.keys() >= {"single rank", "no fault"}
    ours = figures["slurm-robust"]
    assert sum(told["exact"]["hits"] for told in ours.values()) > 0
    assert run("localize_campaign.py", "--ablate", "2", "--jobs", "2")["figures"] == figures
    command = [sys.executable, str(BENCHMARKS / "localize_campaign.py"), "--markdown", str(saved)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert any(line.startswith("| single rank | 6 | ") for line in told)
    assert any(line.startswith("| without judge_exits | 2 | ") for line in told)


@pytest.mark.variant
def test_checkpoint_verify() -> None:
    """Every part has its figures, and both targets are measured against something of the same run."""
    found = run("checkpoint.py", "--only", "verify")
    figures = found["figures"]
    assert {t["name"] for t in found["targets"] if t["met"] is not None} == {
        "verify, sealed: of what cat takes",
        "lookup among 10,000 files",
    }
    assert figures["one file"].keys() >= {"cat FILE >/dev/null, s", "verify, sealed, s", "seal, s"}
    assert 0 < figures["lookup"]["one stat a file, s"]["median"] < 10
    assert figures["seconds of cat's, one file"]["cat FILE >/dev/null"] == 1


@pytest.mark.variant
def test_checkpoint_stall() -> None:
    """Every way has its stall, in plain copies too, and its memory; all targets are measured."""
    found = run("checkpoint.py", "--only", "stall")
    ways = {name.removeprefix("0.02 GB, "): told for name, told in found["figures"].items() if name[0] == "0"}
    assert ways.keys() >= {
        "plain copy",
        "plain copy, one thread",
        "Checkpointer",
        "torch.save",
        "DCP save",
        "async_save",
        ways["DCP's best"],
    }
    for told in (ways[name] for name in ways if name != "DCP's best"):
        assert 0 < told["call_s"]["min"] <= told["stall_s"]["median"] <= told["written_s"]["max"] < 60
        assert told["copies"]["median"] > 0
        assert 0 < told["cpu_s"]["median"] < 60
    assert [t["met"] for t in found["targets"]].count(None) == 0
    assert 2 <= ways["Checkpointer"]["extra_states"] < 8, "two buffers and a small process"


def test_checkpoint_beside_a_training() -> None:
    """Both ways of ours train and save, and the time of a step with a save is held against one without."""
    figures = run("checkpoint.py", "--only", "beside")["figures"]
    assert len(figures) == 2
    assert all(told["step_s"]["min"] > 0 and told["first_s"]["n"] == 1 for told in figures.values())


@pytest.mark.variant
def test_checkpoint_restart() -> None:
    """A fresh training loads what another one left: from the agent's memory, and from files."""
    figures = run("checkpoint.py", "--only", "restart")["figures"]
    assert {source: told["n"] for source, told in figures["0.02 GB, restart"].items()} == {"memory_s": 1, "files_s": 1}


def test_checkpoint_leaves_out_what_does_not_fit() -> None:
    """A state that the node has no memory for is named, and nothing of that size is made."""
    command = [sys.executable, str(BENCHMARKS / "checkpoint.py"), "--json", "--only", "stall", "--gb", "1e6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert any("1e+06 GB is left out" in note for note in json.loads(done.stdout)["notes"])


def test_slow_campaign_twice() -> None:
    """Every class has its figures, slow machines are found, and the same seeds give the same figures again."""
    figures = run("slow_campaign.py")["figures"]
    ours = figures["slurm-robust"]
    assert {kind: told["cases"] for kind, told in ours.items()}.keys() >= {"slow GPU 5 %", "slow node", "totals only"}
    assert ours["slow GPU 30 %"]["exact"]["hits"] > 0
    assert ours["totals only"]["rightly nobody"]["hits"] == ours["totals only"]["cases"]
    assert run("slow_campaign.py")["figures"] == figures


@pytest.mark.parametrize(
    "more", [(), pytest.param(("other-collective",), marks=pytest.mark.variant)], ids=["one", "two"]
)
def test_localisation_of_real_ranks(more: tuple[str, ...]) -> None:
    """Real processes with known faults: each class's outcomes add up, and no wrong node is named."""
    figures = run("localize_real.py", "--only", "loader-lock", *more, "--recorder")["figures"]
    told = {case["case"]: case for case in figures["cases"]}
    assert told["loader-lock"]["named"] == ["n2"]
    assert told["loader-lock"]["outcome"] == "exact"
    assert "never joined" in told["loader-lock"]["told"], "the recorder's word goes first"
    assert {told[case]["outcome"] for case in more} <= {"rightly none"}
    assert figures["classes"]["all"]["cases"] == 1 + len(more)


@pytest.mark.variant
@pytest.mark.slurm
def test_localisation_of_real_ranks_under_srobust_run() -> None:
    """The same as jobs: `srobust run` suspects by itself, and its own incident names the node, or nobody."""
    figures = run("localize_real.py", "--slurm", "--only", "loader-lock", "other-collective")["figures"]
    told = {case["case"]: case for case in figures["cases"]}
    assert told["loader-lock"]["named"] == ["n2"]
    assert "data loader hangs" in told["loader-lock"]["told"] or "never joined" in told["loader-lock"]["told"]
    assert told["other-collective"]["outcome"] == "rightly none"


def test_localisation_of_many_ranks() -> None:
    """The guilty node is named at each size; time, memory and bytes are there. How fast it was is not judged here."""
    found = run("localize_scale.py")
    sizes = found["figures"]["sizes"]
    assert [size["ranks"] for size in sizes] == [1000, 4000]
    assert [size["named"] for size in sizes] == [["n00062"], ["n00250"]]
    for size in sizes:
        assert 0 < size["judge_and_fold_s"] < 30
        assert 100 < size["bytes_a_rank"] < 4096
        assert size["peak_mib"] > 1
    assert [t["met"] for t in found["targets"][:3]] == [None] * 3, "100,000 ranks were not measured"


def test_slowness_of_many_ranks() -> None:
    """The slow rank is named at each size; time and memory are there. How fast it was is not judged here."""
    found = run("slow_scale.py")
    sizes = found["figures"]["sizes"]
    assert [(size["ranks"], size["named"]) for size in sizes] == [(1000, [[500]]), (4000, [[2000]])]
    for size in sizes:
        assert 0 < size["judge_s"] < 30
        assert size["peak_mib"] > 1
    assert [t["met"] for t in found["targets"][:3]] == [None, None, True], "100,000 ranks were not measured"


def test_cost_of_a_node_watch() -> None:
    """At rest it costs next to nothing; a flood hides no fault."""
    found = run("nodewatch.py", "--only", "rest,flood")
    figures = found["figures"]
    assert 0 <= figures["rest"]["cpu_percent"] < 10
    assert 4 < figures["rest"]["pss_mib"] < 100
    assert figures["flood"]["lines"] == 20_000
    assert 0 < figures["flood"]["last_s"] <= figures["flood"]["took_s"]
    assert {t["met"] for t in found["targets"] if t["name"].startswith("kernel log")} == {None}, "not measured here"


@pytest.mark.variant
@pytest.mark.slurm
def test_a_lost_gpu_beside_the_same_fault_left_to_silence() -> None:
    """One round of both kinds at least: signal, decision and stop in this order, and silence is slower."""
    live = run("nodewatch.py", "--only", "live")["figures"]["live"]
    told, silent = live["told"], live["silent"]
    assert 0 < told["signal_s"]["median"] < told["decided_s"]["median"] < told["stopped_s"]["median"]
    assert told["decided_s"]["max"] < silent["decided_s"]["min"]


@pytest.mark.variant
@pytest.mark.slurm
def test_stop_time_tests_on_two_nodes() -> None:
    """Every stage has its time, and the first verdict comes before all of it; a bare collective is beside it."""
    pytest.importorskip("torch")
    found = run("stoptime.py", "--only", "verdict")
    (figures,) = found["figures"]["verdict"]
    assert 0 < figures["bare_collective_s"]["median"] < 60
    assert {"command", "start", "full check", "in-node", "pairs", "alignment", "end"} <= figures.keys()
    assert 0 < figures["first verdict"]["median"] < figures["all"]["median"] < 120
    assert all(t["met"] is not None for t in found["targets"])


@pytest.mark.slurm
@pytest.mark.e2e
@pytest.mark.variant
def test_a_code_update_in_place_beside_a_new_job() -> None:
    """Both come to a new step, and their ratio is there."""
    figures = run("stoptime.py", "--only", "update")["figures"]["update"]
    assert 0 < figures["in_place_s"]["median"] < 60
    assert 0 < figures["by_hand_s"]["median"] < 120
    assert figures["times_faster"] > 0
