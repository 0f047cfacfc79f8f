"""Runs one command, as any account, whose output becomes part of the error where it fails."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_robust.devcluster.spec import DevClusterError


class CommandError(subprocess.CalledProcessError):
    """A command in the devcluster failed; the text contains its output."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stdout or ''}{self.stderr or ''}"


@dataclass(frozen=True)
class CommandOptions:
    """How a command runs.

    Attributes:
        env: Its whole environment.
        cwd: Its working directory.
        timeout_s: After this it is killed.
        user: Account to run it as; only root can name another.
        check: Raise where it does not exit 0.
        stdin: Text for its stdin; None for no input.
    """

    env: Mapping[str, str]
    cwd: str | os.PathLike[str]
    timeout_s: float = 30
    user: str | None = None
    check: bool = True
    stdin: str | None = None


def run(args: Sequence[str | os.PathLike[str]], options: CommandOptions) -> subprocess.CompletedProcess[str]:
    """Run a command, with its output captured as text.

    Raises:
        CommandError: it failed, and `check` is set.
        DevClusterError: there is no such account.
        subprocess.TimeoutExpired: it took too long.
    """
    values, user = dict(options.env), options.user
    more: dict[str, Any] = {"stdin": subprocess.DEVNULL} if options.stdin is None else {"input": options.stdin}
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
        cwd=options.cwd,
        timeout=options.timeout_s,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )
    if options.check and done.returncode:
        raise CommandError(done.returncode, done.args, done.stdout, done.stderr)
    return done
