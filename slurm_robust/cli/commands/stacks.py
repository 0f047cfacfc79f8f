"""`srobust stacks JOBID`: merged stacks of a live job, also one that was never wrapped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from slurm_robust.cli.teaching import fail, failing, lesson, not_running
from slurm_robust.config import site
from slurm_robust.core.model import JobRef
from slurm_robust.localize.evidence import Capture, Evidence
from slurm_robust.localize.ranks import name
from slurm_robust.localize.slow.rounds import judge_repeated
from slurm_robust.localize.stacks.merge import render_tree
from slurm_robust.localize.stacks.motion import Motion, stillness
from slurm_robust.localize.verdict_text import to_json, to_text
from slurm_robust.slurm.factory import connect
from slurm_robust.supervise.incident.investigation import merge
from slurm_robust.supervise.incident_folder import IncidentFolder
from slurm_robust.supervise.watch.live_stacks import LiveCapture, LiveStacksError, account_for, live_captures

_ROUND_S = 10.0
_REDRAW = "\x1b[H\x1b[J"
"""The codes that move the cursor to the top left corner and clear everything below."""


@click.command(
    epilog=lesson(
        [
            ("srobust stacks 1234", "the merged stacks of job 1234, now"),
            ("srobust stacks 1234 --every 5", "again every five seconds, redrawn, with who moves and who stands still"),
            ("srobust stacks 1234 --save stacks", "and keep the archives, for: srobust localize --stacks stacks"),
            ("srobust stacks 1234 --rounds 5", "a slow job: which ranks do the others wait for?"),
        ],
        [
            (0, "all nodes answered"),
            (1, "some did not; stderr names them"),
            (2, "wrong usage"),
            (3, "no such running job, or Slurm does not answer"),
        ],
    )
)
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="The archives of all nodes as one JSON object.")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), help="Also keep the archives here, one a node."
)
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.5), help="Capture again after so many seconds; Ctrl-C ends."
)
@click.option(
    "--rounds", type=click.IntRange(2, 100), help="Capture so many times (every 10 s, or as --every says), and judge."
)
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds for one capture.")
@click.option("--config", "config_path", type=click.Path(), help="robust.yaml to use.")
def command(
    *,
    job_id: str,
    as_json: bool,
    save: Path | None,
    every_s: float | None,
    rounds: int | None,
    timeout_s: float,
    config_path: str | None,
) -> None:
    """Take the stacks of every process of every rank of a running job, and print them merged.

    The job needs no preparation: plain `srun python train.py` will do. Nothing in it is changed or stopped. You
    must be its owner, or root, who becomes the owner for it unless SlurmUser is root. The tree shows each place in the
    program with the ranks that stand there, `0-2,5`; the odd ones out are usually the interesting ones.

    With --every the tree is redrawn in place until Ctrl-C or the job's end, and with --save each capture is kept: two
    captures show which ranks move and which stand still.

    With --rounds a slow job is captured again and again, and the ranks that the others wait for in most rounds are
    named; the tree is of the last round.
    """
    if as_json and every_s is not None and rounds is None:
        raise click.UsageError("--json is for one capture: leave out --every, or add --rounds N")
    with failing("stacks", site.ConfigError):
        config = site.load(config_path)
        ref = JobRef.parse(job_id)
        client = connect(config.slurm)
        job = client.job(ref)
        # Agents tell jobs of two clusters on one machine apart by it, and only a job's own environment has it.
        os.environ.setdefault("SLURM_CLUSTER_NAME", client.cluster_name())
        settings = client.settings() if os.geteuid() == 0 else {}
    if job is None or job.state != "RUNNING":
        fail("stacks", not_running(job_id, job.state if job else None))
    missing: list[str] = []
    try:
        account = account_for(job, settings)
        if rounds is None:
            seen = live_captures(job, config.supervise, timeout_s, every_s, account=account)
            missing = asyncio.run(_show(seen, as_json=as_json, save=save))
        else:
            seen = live_captures(job, config.supervise, timeout_s, every_s or _ROUND_S, rounds, account=account)
            missing = asyncio.run(_judge(seen, rounds, as_json=as_json, save=save))
    except LiveStacksError as error:
        hint = "" if job.user == _own_name() else f"; its owner may: sudo -u {job.user} srobust stacks {job_id}"
        fail("stacks", f"{error}{hint}")
    except KeyboardInterrupt:
        if every_s is None or rounds is not None:
            sys.exit(130)
    if missing and (every_s is None or rounds is not None):
        click.echo(f"no answer from {','.join(missing)}", err=True)
    sys.exit(1 if missing else 0)


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


async def _show(found: AsyncGenerator[LiveCapture, None], *, as_json: bool, save: Path | None) -> list[str]:
    """Show each capture as it comes; returns the nodes that did not answer the last one."""
    before: Capture | None = None
    missing: list[str] = []
    async with contextlib.aclosing(found):
        async for look in found:
            missing = look.missing
            _keep(look, save)
            if as_json:
                click.echo(_as_json(look, click.get_current_context().params["job_id"]))
                continue
            now = merge(look.archives, look.missing, time.time()).capture
            if look.round > 1:
                click.echo(_REDRAW if sys.stdout.isatty() else "\n", nl=False)
                click.echo(motion_line(before, now, look.round))
            click.echo(_fitting(render_tree(now)))
            before = now
    return missing


async def _judge(
    found: AsyncGenerator[LiveCapture, None], count: int, *, as_json: bool, save: Path | None
) -> list[str]:
    """Take all captures, then show the last one and the verdict on all; returns nodes without an answer to the last."""
    captures: list[Capture] = []
    async with contextlib.aclosing(found):
        async for look in found:
            _keep(look, save)
            captures.append(merge(look.archives, look.missing, time.time()).capture)
            click.echo(f"round {look.round} of {count}", err=True)
    nodes = {rank.rank: rank.node for capture in captures for rank in capture.ranks}
    verdict = judge_repeated(Evidence(max(nodes, default=-1) + 1, nodes, tuple(captures)))
    if as_json:
        click.echo(_as_json(look, click.get_current_context().params["job_id"], verdict=to_json(verdict)))
    else:
        click.echo(render_tree(captures[-1]))
        click.echo(to_text(replace(verdict, classes=())))
    return look.missing


def _keep(look: LiveCapture, save: Path | None) -> None:
    if save is not None:
        IncidentFolder(save / f"stacks-{look.round}", quiet=True).write_archives("", look.archives)


def _as_json(look: LiveCapture, job: str, **more: object) -> str:
    nodes = {node: msgspec.Raw(body) for node, body in look.archives.items()}
    return msgspec.json.encode({"job": job, "missing": look.missing, "nodes": nodes, **more}).decode()


def motion_line(before: Capture | None, now: Capture, number: int) -> str:
    """Return a line that says which ranks moved between two captures, and which stood still."""
    ranks = [r.rank for r in now.ranks]
    seen = stillness([c for c in (before, now) if c is not None], ranks)
    moved = [rank for rank, x in seen.items() if x.moves]
    still = [rank for rank, x in seen.items() if x.last is not None and x.last.motion is Motion.STILL]
    parts = [f"{name(some)} {verb}" for some, verb in ((moved, "moved"), (still, "stood still")) if some]
    apart = f" in {now.at_s - before.at_s:.1f} s" if before is not None else ""
    return f"capture {number}{apart}: {', '.join(parts) or 'motion is not known'}"


def _fitting(tree: str) -> str:
    """Return the tree, cut to the terminal's height if there is a terminal."""
    if not sys.stdout.isatty():
        return tree
    height = shutil.get_terminal_size().lines - 3
    lines = tree.splitlines()
    return tree if len(lines) <= height else "\n".join([*lines[:height], f"… {len(lines) - height} lines more"])
