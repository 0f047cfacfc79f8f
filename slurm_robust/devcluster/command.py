"""Runs one command, as any account, whose output becomes part of the error where it fails."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_robust.devcluster.spec import DevClusterError


class CommandError(subprocess.CalledProcessError):
    """A command in the devcluster failed; the text contains its output."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout or ''}{self.stderr or ''}"


def run_as(
    args: Sequence[str | os.PathLike[str]],
    *,
    user: str | None,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    timeout_s: float,
    check: bool,
    text: str | None,
) -> subprocess.CompletedProcess[str]:
    """As `DevCluster.run`, with the whole environment given; `text` is the command's stdin.

    Raises:
        CommandError: it failed, and `check` is set.
        DevClusterError: there is no such account.
        subprocess.TimeoutExpired: it took too long.
    """
    values = dict(env)
    more: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    if user is not None:
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            raise DevClusterError(f"{user}: no such account on this machine") from None
        values |= {"USER": user, "LOGNAME": user, "HOME": account.pw_dir}
        groups = os.getgrouplist(user, account.pw_gid)
        more |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
    done = subprocess.run(
        [os.fspath(word) for word in args],
        env=values,
        cwd=cwd,
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )
    if check and done.returncode:
        raise CommandError(done.returncode, done.args, done.stdout, done.stderr)
    return done
