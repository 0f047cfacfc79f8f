"""The fresh verdict: when a prolog believes it, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.nodecheck import state_folder
from slurm_robust.nodecheck.checks.host import leftovers
from slurm_robust.nodecheck.engine import choices, runner
from slurm_robust.nodecheck.engine.finding import Finding, Status
from slurm_robust.nodecheck.stages import fast_path, stage_run
from slurm_robust.nodecheck.stages.fast_path import StaleVerdict

HOME = Path(__file__).parents[3]
XID_13 = "NVRM: Xid (PCI:0000:9b:00): 13, pid=1, Graphics Exception\n"
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


class Site:
    """A node's files, and its prolog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "robust.yaml"
        self.kmsg = folder / "n1.kmsg"
        self.kmsg.write_text("Linux version 6.1.0\n")
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.gpus = folder / "root/proc/driver/nvidia/gpus"
        self.gpus.mkdir(parents=True)
        self.configure()

    def configure(self, more: str = "") -> None:
        """Write robust.yaml."""
        self.config.write_text(
            f"nodecheck: {{kmsg: {self.folder}/%n.kmsg, cache_dir: {self.folder}/cache/%n, deadline_s: 30, "
            f"disable: [ethernet, shm, filesystem]{more}}}\n"
        )

    @property
    def verdict(self) -> Path:
        """The fresh verdict."""
        return self.folder / "cache/n1/fresh"

    def look(self, stage: str = "periodic", **env: str) -> int:
        """One look by the scripts' way in."""
        old = dict(os.environ)
        os.environ.clear()
        os.environ.update({"SLURMD_NODENAME": "n1"} | env)
        try:
            return fast_path.main(stage, str(self.config))
        finally:
            os.environ.clear()
            os.environ.update(old)

    def holds(self) -> str:
        """What the verdict says; raises where it does not hold."""
        return fast_path.cached_verdict(str(self.config), "n1")[0]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A healthy node that was looked at a moment ago."""
    made = Site(tmp_path)
    assert made.look() == 0
    return made


def test_a_look_that_found_nothing_leaves_a_verdict_and_the_prolog_believes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check is run: the whole look is not even reached."""
    assert "no change since" in site.holds()
    monkeypatch.setattr(stage_run, "main", lambda *a, **k: pytest.fail("the whole look was taken"))
    assert site.look("prolog") == 0


@pytest.mark.parametrize("stage", ["epilog", "periodic"])
def test_only_a_prolog_believes_it(site: Site, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are there to find something."""
    monkeypatch.setattr(stage_run, "main", lambda *a, **k: 7)
    assert site.look(stage) == 7


def rewrite(old: str, new: str) -> Callable[[Site], None]:
    """Changes a line of the verdict."""

    def do(site: Site) -> None:
        text = site.verdict.read_text()
        line = next(line for line in text.splitlines() if line.startswith(old))
        site.verdict.write_text(text.replace(line, new))

    return do


def linked(site: Site) -> None:
    """The verdict is a link to a copy of itself."""
    there = site.verdict.rename(site.folder / "elsewhere")
    site.verdict.symlink_to(there)


def linked_folder(site: Site) -> None:
    """The folder is a link."""
    there = site.verdict.parent.rename(site.folder / "elsewhere")
    (site.folder / "cache/n1").symlink_to(there)


def logged(text: str) -> Callable[[Site], None]:
    """The kernel says something."""

    def do(site: Site) -> None:
        with site.kmsg.open("a") as log:
            log.write(text)

    return do


CHANGES: list[Callable[[Site], object]] = [
    rewrite("srobust-fresh", "srobust-fresh 1 0.0.9"),
    rewrite("boot", "boot\tanother"),
    rewrite("node", "node\tn2"),
    rewrite("until", "until\t1.0"),
    rewrite("made", "made\t99999999999"),
    rewrite("until", "until\tnan"),
    rewrite("until", "until\tsoon"),
    rewrite("end", ""),
    rewrite("watch\tentries", "watch\tunheard\tof"),
    rewrite("watch\tentries", "watch\tentries\t/proc/driver/nvidia/gpus\t8"),
    lambda site: site.configure(", permit_timeout_s: 4"),
    lambda site: site.config.touch(),
    lambda site: site.config.unlink(),
    lambda site: site.verdict.unlink(),
    lambda site: site.verdict.write_bytes(b"\xff\x00" * 1000),
    lambda site: site.verdict.write_text(""),
    lambda site: site.verdict.parent.chmod(0o777),
    lambda site: site.kmsg.unlink(),
    lambda site: site.kmsg.write_text(""),
    linked,
    linked_folder,
    logged(XID_13),
    logged(XID_79),
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_ends_it(site: Site, change: Callable[[Site], object]) -> None:
    """Another program, boot, node, configuration, age, owner; a new line about a GPU; garbage: the whole look."""
    site.holds()
    change(site)
    with pytest.raises((OSError, StaleVerdict, state_folder.UntrustedState, KeyError, ValueError, IndexError)):
        site.holds()


def test_lines_that_concern_no_check_leave_it(site: Site) -> None:
    """A kernel log is never still."""
    logged("usb 1-1: new device\nNVRM: loading driver\n")(site)
    assert site.holds()


def test_a_line_that_is_being_written_is_looked_at_as_a_whole(site: Site) -> None:
    """The look ended in the middle of a line that turns out to be an XID."""
    logged("NVRM: X")(site)
    site.look()
    assert site.holds()
    logged("id (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n")(site)
    with pytest.raises(StaleVerdict):
        site.holds()


def test_harmless_xids_cost_one_whole_look_and_no_more(site: Site) -> None:
    """The look that they bring about finds the node fit, and says so anew."""
    logged(XID_13)(site)
    assert site.look("prolog") == 0
    assert site.holds()


def test_it_holds_at_the_very_moment_at_which_it_is_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is kept as it was read: a rounded one can lie after the look."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME) // 1 + 0.0006
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: now_s)
    assert site.look() == 0
    assert site.holds()


@pytest.mark.parametrize("stage", ["prolog", "epilog", "periodic"])
def test_an_unfit_node_loses_it(site: Site, stage: str) -> None:
    """Whoever finds the fault, the next prolog looks itself."""
    logged(XID_79)(site)
    site.look(stage)
    assert not site.verdict.exists()


def test_zero_switches_it_off(site: Site) -> None:
    """`nodecheck.fresh_s: 0`: none is left, and the old one goes."""
    site.configure(", fresh_s: 0")
    site.look()
    assert not site.verdict.exists()


def test_mounts_are_asked_and_a_change_of_any_shows(site: Site) -> None:
    """A place that is gone, full, read-only, or another device is no fresh verdict's matter."""
    device = site.scratch.stat().st_dev
    fast_path.ask_in_child("", [(fast_path._answers, [f"{site.scratch}|{device}|1|w"])])
    for wrong in (
        f"{site.scratch}/none|{device}|1|w",
        f"{site.scratch}|{device + 1}|1|",
        f"{site.scratch}|{device}|{1 << 40}|",
    ):
        with pytest.raises(StaleVerdict, match="changed"):
            fast_path.ask_in_child("", [(fast_path._answers, [f"{site.scratch}|{device}|1|w", wrong])])


def test_a_mount_that_does_not_answer_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """nhc#95: after a second the whole look takes over, which knows what to do about it."""
    monkeypatch.setattr(fast_path, "_usable", lambda *a: time.sleep(30))
    started_s = time.monotonic()
    with pytest.raises(StaleVerdict, match="does not answer"):
        fast_path.ask_in_child("", [(fast_path._answers, ["/|1|1|"])])
    assert time.monotonic() - started_s < 5


def test_whoever_waits_for_our_output_does_not_wait_for_a_dead_mount(tmp_path: Path) -> None:
    """Slurmd reads a prolog's output to its end: what sleeps in the kernel, and cannot be killed, must not hold it."""
    code = (
        f"import sys, time\nsys.path.append({str(HOME)!r})\n"
        "from slurm_robust.nodecheck.stages import fast_path as watches\n"
        "watches.os.kill = lambda *a: None\nwatches._usable = lambda *a: time.sleep(20)\n"
        "try:\n    watches.ask_in_child('', [(watches._answers, ['/|1|1|'])])\n"
        "except watches.StaleVerdict as stale:\n    print(stale, file=sys.stderr)\n"
    )
    started_s = time.monotonic()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=60, check=True)
    assert b"does not answer" in done.stderr
    assert time.monotonic() - started_s < 10


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), at=st.integers(0, 600))
def test_no_bytes_make_it_say_more_than_a_look_did(site: Site, data: bytes, at: int) -> None:
    """A verdict cut or overwritten anywhere holds only if it still is one; else an ordinary exception says so."""
    whole = site.verdict.read_bytes() if not hasattr(site, "whole") else site.whole
    site.whole = whole  # type: ignore[attr-defined]
    site.verdict.write_bytes(whole[:at] + data)
    try:
        said = fast_path.cached_verdict(str(site.config), "n1")[1]
    except (OSError, StaleVerdict, state_folder.UntrustedState, KeyError, ValueError, IndexError, TypeError):
        return
    assert said["node"] == "n1"
    assert said["boot"] == state_folder.boot_id()


@pytest.mark.parametrize(
    "written",
    [
        "cache_dir: /a/b",
        "cache_dir : '/a/b'",
        '"cache_dir": "/a/b"',
        "{'cache_dir': /a/b, kmsg: /c}",
        "cache_dir: /a/b # .",
    ],
)
def test_the_hint_is_found_however_the_key_is_written(tmp_path: Path, written: str) -> None:
    """A tool may write the configuration as JSON: the prolog is not slower for that."""
    path = tmp_path / "robust.yaml"
    path.write_text(f"nodecheck: {written}\n" if written[0] == "{" else f"nodecheck:\n  {written}\n")
    assert choices.read(str(path)).nodecheck.cache_dir == "/a/b"
    assert state_folder.cache_dir_of(str(path), "n1") == "/a/b"


@given(st.text(max_size=300))
def test_the_hint_where_state_lies_never_fails_otherwise_than_it_says(text: str) -> None:
    """Whatever a configuration looks like."""
    path = Path(f"/tmp/srobust-hint-{os.getpid()}")
    path.write_bytes(f"nodecheck:\n  cache_dir: {text}".encode("utf-8", "surrogatepass"))
    try:
        assert state_folder.cache_dir_of(str(path), "n1")
    except state_folder.UntrustedState:
        pass
    finally:
        path.unlink()


SHORT_WAY = ("nodecheck.state_folder", "nodecheck.stages", "nodecheck.stages.fast_path")


@pytest.mark.parametrize("name", ["n1", "gpu-a100.rack_7"])
def test_node_names(name: str) -> None:
    """What Slurm calls nodes."""
    assert fast_path.node_of(name) == name


@pytest.mark.parametrize("name", ["", "..", "../n1", "n1;touch x", "n 1", "n1\n", "ñ1", "."])
def test_no_node_names(name: str) -> None:
    """What could mean another place."""
    assert fast_path.node_of(name) == ""


def test_the_short_way_loads_next_to_nothing(site: Site) -> None:
    """Not one module beyond those of a bare interpreter, but for our own few."""
    tell = "import sys\nbefore = set(sys.modules)\n"
    code = (
        f"{tell}sys.path.append({str(HOME)!r})\nfrom slurm_robust.nodecheck.stages.fast_path import main\n"
        f"assert main('prolog', {str(site.config)!r}) == 0\nprint(sorted(set(sys.modules) - before))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    env = {"SLURMD_NODENAME": "n1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(eval(done.stdout))
    ours = {"slurm_robust"} | {f"slurm_robust.{name}" for name in ("nodecheck", *SHORT_WAY)}
    # What any script that imports `os` has.
    bare = {"__future__", "stat", "_stat", "os", "os.path", "posixpath", "genericpath", "_collections_abc"}
    assert ours <= loaded <= ours | bare


def test_the_whole_look_without_yaml_once_the_choices_are_kept(site: Site) -> None:
    """The second whole look of the same configuration loads neither YAML nor the typed configuration, nor site."""
    site.verdict.unlink()
    code = (
        f"import sys\nsys.path.append({str(HOME)!r})\nfrom slurm_robust.nodecheck.stages.fast_path import main\n"
        f"assert main('prolog', {str(site.config)!r}) == 0\nprint(*sorted(sys.modules))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    env = {"SLURMD_NODENAME": "n1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    heavy = {"yaml", "msgspec", "torch", "aiohttp", "rich", "click", "pyslurm", "argparse", "site", "psutil", "asyncio"}
    assert not heavy & set(done.stdout.split())
    assert "slurm_robust.nodecheck.engine.runner" in done.stdout


def restless(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    """`leftovers` is a check that changes by the minute, and finds this."""
    finding = Finding(status, "said", "said so")
    changed = replace(leftovers.check, always=True, probe=lambda c, o: {}, judge=lambda f, o: finding)
    monkeypatch.setattr(leftovers, "check", changed)


def test_what_changes_by_the_minute_is_looked_at_again_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a fresh verdict only that check is run; where it finds anything, all are."""
    restless(monkeypatch, Status.PASS)
    site.look()
    ran: list[list[str]] = []
    real = runner.run
    monkeypatch.setattr(runner, "run", lambda checks, *a: ran.append([c.name for c in checks]) or real(checks, *a))
    assert site.look("prolog") == 0
    assert ran == [["leftovers"]]
    restless(monkeypatch, Status.WARN)
    assert site.look("prolog") == 0
    assert ran[1] == ["leftovers"]
    assert len(ran[2]) > 3


def test_a_check_of_the_prolog_that_the_health_check_does_not_make_is_made_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict speaks of what was looked at, and no more."""
    monkeypatch.setattr(leftovers, "check", replace(leftovers.check, stages=("prolog", "full")))
    site.look("periodic")
    assert list(json.loads(fast_path.cached_verdict(str(site.config), "n1")[1]["again"])) == ["leftovers"]
    site.look("prolog")
    site.verdict.unlink()
    site.look("prolog")
    assert fast_path.cached_verdict(str(site.config), "n1")[1]["again"] == ""


def test_options_and_names_that_do_not_exist_are_2(site: Site) -> None:
    """The scripts let the job start and say so."""
    for more in (
        ", options: {xd: {}}",
        ", options: {xid: {fial: []}}",
        ", deadline: 3",
        ", options: {xid: {strikes: x}}",
    ):
        site.configure(more)
        assert site.look("prolog") == 2


@pytest.mark.parametrize(
    "keys", ["permit_timeout_s: 4.0, without_daemon: drain", "leave_timeout_s: 4.0, alone: drain"], ids=["new", "old"]
)
def test_old_keys_of_the_configuration_are_read_as_the_new_ones(tmp_path: Path, keys: str) -> None:
    """By the scripts too: their choices are the same, and so is what the gate reads."""
    path = tmp_path / "robust.yaml"
    path.write_text(f"nodecheck: {{cache_dir: {tmp_path}/cache, {keys}}}\n")
    path.chmod(0o644)
    part = choices.read(str(path)).nodecheck
    assert (part.permit_timeout_s, part.without_daemon) == (4.0, "drain")
    assert choices.load(str(path), "n1").cache_dir == f"{tmp_path}/cache"
