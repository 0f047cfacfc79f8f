"""robust.yaml is read again while the node watch runs: after SIGHUP, and by itself; a broken one changes nothing."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from helpers import wait_until
from watch_helpers import XID_79, RunningService

from slurm_robust.nodewatch import settings_file
from slurm_robust.nodewatch.moment import Moment
from slurm_robust.nodewatch.settings_file import SettingsFile, identity_of

Watch = Callable[..., RunningService]


def write(service: RunningService, text: str) -> None:
    """Write other settings, and have the service read them."""
    (service.folder / "robust.yaml").write_text(
        f"nodecheck: {{cache_dir: {service.cache}, kmsg: {service.kmsg}}}\n{text}"
    )
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)


def test_the_mode_reaches_it_in_both_directions(watch: Watch) -> None:
    """The same process goes on, loses no line of the log, and says its mode and since when."""
    service = watch().start()
    wait_until(lambda: "mode observe, since 20" in service.said(), 10, service.said())
    write(service, "mode: act\nslurm: {bin_dir: /nonexistent}\n")
    wait_until(lambda: "mode act, since 20" in service.said(), 10, service.said())
    service.log(XID_79)
    assert service.wait_for("xid").seq == 1
    assert "observe: would tell" not in service.said()
    write(service, "mode: observe\n")
    wait_until(lambda: service.said().count("mode observe, since 20") == 2, 10, service.said())
    service.log("nvme nvme0: Disabling device after reset failure: -19")
    assert service.wait_for("disk_lost").seq == 2
    wait_until(lambda: "observe: would tell Slurm" in service.said(), 10, service.said())
    assert service.end() == 0
    service.start()
    told = [line for line in service.said().splitlines() if "mode observe, since" in line]
    assert len(told) == 3
    assert told[1] == told[2], "a restart is no change of the mode"
    assert service.end() == 0


def test_a_broken_file_keeps_the_settings_and_says_so(watch: Watch) -> None:
    """With file, line and key; mended, it is read."""
    service = watch().start()
    write(service, "mode: on\n")
    wait_until(lambda: "the settings of before hold (mode observe): " in service.said(), 10, service.said())
    assert "robust.yaml:2: mode: " in service.said()
    service.log(XID_79)
    service.wait_for("xid")
    write(service, "")
    wait_until(lambda: "no setting has changed (mode observe)" in service.said(), 10, service.said())
    write(service, "mode: act\nslurm: {bin_dir: /nonexistent}\n")
    wait_until(lambda: "mode act, since" in service.said(), 10, service.said())


def look(file: SettingsFile, later_s: float = 0.0) -> Moment:
    """Have its child look once, at a time so long from now."""
    now = Moment.now()
    moment = now._replace(monotonic_s=now.monotonic_s + later_s)
    file.tick(moment)
    while file.fd >= 0:
        select.select([file.fd], [], [], 10)
        file.read(moment)
    return moment


def test_another_file_is_noticed_without_a_signal(tmp_path: Path) -> None:
    """Edited, replaced, removed; said once each, and not at all where nothing has changed."""
    path = tmp_path / "robust.yaml"
    path.write_text("mode: observe\n")
    file = SettingsFile(str(path), identity_of(str(path)))
    look(file)
    assert not file.changed
    for step in (partial(path.write_text, "mode: act\n"), path.unlink):
        step()
        look(file)
        assert file.changed
        file.changed = False
        look(file)
        assert not file.changed


def test_the_daemon_is_told_once_and_later_where_slurm_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gaps between two tries grow: many nodes must not besiege a controller that is away."""
    monkeypatch.setattr(settings_file, "SPREAD_S", 0.0)
    tries = tmp_path / "tries"
    away = tmp_path / "away"
    away.touch()

    def tell() -> str:
        with tries.open("a") as out:
            out.write("x")
        return "Slurm is away" if away.exists() else ""

    file = SettingsFile(os.devnull, identity_of(os.devnull), tell)
    for later_s, expected in ((0, 1), (10, 1), (31, 2), (62, 2), (92, 3)):
        look(file, later_s)
        assert len(tries.read_text()) == expected
    away.unlink()
    look(file, 999)
    look(file, 9999)
    assert len(tries.read_text()) == 4
