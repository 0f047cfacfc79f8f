"""Attacks on the lock of a job's supervisor: a stranger on the node takes its names."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import pytest
from other_user import ATTACKER, acting_as, as_user, home_of, needs_root

from slurm_robust.supervise.launch.supervisor_lock import SupervisorLock
from slurm_robust.wire import own_folder

pytestmark = needs_root
VICTIM = 60000 + os.getpid() % 4000
"""Another user in each process that runs tests: a user's locks are in one folder."""
CLUSTER = f"test-{os.getpid()}-{secrets.token_hex(4)}"


def _place() -> Path:
    return Path(f"/tmp/srobust-{VICTIM}")


def _remove() -> None:
    for path in _place().parent.glob(f"{_place().name}*"):
        if path.is_symlink():
            path.unlink()
            continue
        for inside in path.iterdir():
            inside.unlink()
        path.rmdir()


def test_sockets_of_a_stranger_turn_no_supervisor_to_observing() -> None:
    """The stranger listens at every name that was used, and their queues are full."""
    with acting_as(ATTACKER):
        squatted = []
        for place in range(9):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(f"\0srobust-{VICTIM}-{CLUSTER}-5.{place}")
            listener.listen(0)
            squatted.append(listener)
            for _ in range(3):
                full = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                full.setblocking(False)
                squatted.append(full)
                full.connect_ex(f"\0srobust-{VICTIM}-{CLUSTER}-5.{place}")
    try:
        assert as_user(VICTIM, _claims) == [True, False, True]
    finally:
        for one in squatted:
            one.close()
        _remove()


def _claims() -> list[bool]:
    """Whether the first of two supervisors may act, whether the second may, and whether the first learns of it."""
    first, second = SupervisorLock(CLUSTER, "5"), SupervisorLock(CLUSTER, "5")
    return [first.claim() and not first.shared, second.claim(), first.shared]


@pytest.mark.parametrize("kind", ["folder", "link", "all names"])
def test_a_folder_made_first_holds_nothing_of_ours(tmp_path: Path, kind: str) -> None:
    """Two supervisors of one user still exclude each other, in a folder of another name."""
    home = home_of(VICTIM, tmp_path / "home")
    for above in tmp_path.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o111)
    tmp_path.chmod(0o755)

    def attack() -> None:
        if kind == "link":
            _place().symlink_to(home)
            return
        for suffix in ("", ".1", ".2", ".3") if kind == "all names" else ("",):
            Path(f"{_place()}{suffix}").mkdir()
            Path(f"{_place()}{suffix}").chmod(0o777)

    _remove()
    try:
        as_user(ATTACKER, attack)
        assert as_user(VICTIM, _claims, home) == [True, False, True]
        assert not [path for path in home.iterdir() if path.name != ".local"]
        assert not list(_place().iterdir()) or kind == "link"
    finally:
        _remove()


def test_who_tidies_up_late_removes_no_name_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job of the user has opened the file before it was removed, and made and held anew."""

    def race() -> bool:
        left, holder, late = (SupervisorLock(CLUSTER, job) for job in ("5", "5", "6"))
        left.claim()
        left.release()
        open_file = own_folder.open_file

        def opened(name: str, flags: int, *, inside: int, mode: int = 0o644) -> int:
            fd = open_file(name, flags, inside=inside, mode=mode)
            monkeypatch.setattr(own_folder, "open_file", open_file)
            holder.claim()
            return fd

        monkeypatch.setattr(own_folder, "open_file", opened)
        late.claim()
        return not SupervisorLock(CLUSTER, "5").claim()

    try:
        assert as_user(VICTIM, race)
    finally:
        _remove()
