"""`srobust run [srun options] [--] CMD…`: a drop-in for srun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from slurm_robust import config as site
from slurm_robust.cli.teaching import lesson
from slurm_robust.model import EXIT_USAGE
from slurm_robust.supervise.launch import options, other_restarters, srun_command
from slurm_robust.supervise.launch.launcher import Launcher

EXIT_NO_SRUN = 127
"""As a shell exits for a command that does not exist."""


class RawCommand(click.Command):
    """Passes all words on unchanged: srun reads its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep all words; only a leading --help is handled here."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params["words"] = list(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Our own options; else files, as for srun."""
        if not incomplete.startswith("--"):
            return [CompletionItem(incomplete, type="file")]
        own = ["--robust=", *(f"--robust-{name}=" for name in options.NAMES)]
        return [CompletionItem(option) for option in own if option.startswith(incomplete)]


def _config_problem(named: str) -> str:
    """What is wrong with the site's file, which must not keep a job from starting; empty if it is right.

    Raises:
        ConfigError: the file that the user named, with the option or `$SROBUST_CONFIG`, is wrong.
    """
    try:
        site.load(named)
    except site.ConfigError as error:
        if named or os.environ.get("SROBUST_CONFIG"):
            raise
        return str(error)
    return ""


def _check_code(folder: str) -> None:
    """Refuse a wrong folder before anything is started; a job that was requeued keeps the version that it has.

    Raises:
        UsageError: it is no folder.
    """
    if folder and not Path(folder).is_dir() and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        raise srun_command.UsageError(f"--robust-code={folder[:80]}: there is no such folder")


@click.command(
    cls=RawCommand,
    epilog=lesson(
        [
            ("srobust run python train.py", "in the sbatch file, instead of `srun python train.py`"),
            ("srobust run -N4 -n32 python train.py", "in an allocation of five nodes: the fifth is the spare"),
            ("srobust run --robust=observe python train.py", "watch and report only"),
        ],
        [
            ("srun's", "the command's own exit code, as srun returns it"),
            (64, "wrong usage, or an error in the robust.yaml that you named: nothing was started"),
            (75, "a requeue was asked for and did not come"),
            (93, "stopped for good: three attempts in a row, or 30 launches in an hour, without a new step"),
            (127, "srun is not on PATH"),
        ],
    ),
)
def command(words: list[str]) -> None:
    """Supervise a training step; a drop-in for srun: srobust run [srun options] [--] CMD [ARG...].

    The training step is your own srun, unchanged: stdin, stdout, stderr, signals and exit code are srun's. A watch step
    runs beside it in the same allocation, with one small agent on each node. When a rank hangs or dies, the stacks of
    all ranks are captured, the node at fault is named, and training resumes from its latest verified checkpoint.

    It resumes on spare nodes of the allocation, if there are any. Ask for one node more than the training needs:
    sbatch -N5, srobust run -N4 -n4. Give -n, because srun takes the number of tasks from the allocation. Without a
    spare node the job is requeued, and the control daemon holds its nodes meanwhile.

    \b
    Own options (all others go to srun):
      --robust=MODE                 on, observe or off (default: the site's)
      --robust-checkpoint-dir=DIR   look up the latest verified checkpoint here; ranks get it in
                                    SROBUST_RESUME_PATH and SROBUST_RESUME_STEP
      --robust-hang-timeout=SECONDS act after this long a silence, whatever the stacks show
      --robust-layout=tp=2,pp=4     parallel sizes, for the localisation (and order=tp-pp-dp)
      --robust-code=DIR             run from a snapshot of this folder; `srobust update` puts a new one in force
      --robust-folder=DIR           where the incident folder goes (default: beside the job's output)
      --robust-config=FILE          robust.yaml to use

    Options that are not given are taken from sbatch --robust, by the variables SROBUST_MODE, SROBUST_CHECKPOINT_DIR,
    SROBUST_HANG_TIMEOUT and SROBUST_LAYOUT.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    try:
        parsed = srun_command.parse(words)
        own = options.read(parsed.own, os.environ)
        problem = _config_problem(own.config)
        outside = other_restarters.leaves_the_step(parsed.command)
        _check_code(own.code)
    except srun_command.UsageError as error:
        sys.stderr.write(f"srobust run: {error}\n\n{options.USAGE}")
        sys.exit(EXIT_USAGE)
    except site.ConfigError as error:
        sys.stderr.write(f"srobust run: {error}\n")
        sys.exit(EXIT_USAGE)
    for mistake in options.mistakes(parsed.own, os.environ):
        sys.stderr.write(f"srobust: {mistake}\n")
    if own.off:
        os.environ["SROBUST_MODE"] = "off"  # otherwise the SPANK plugin would watch this srun by sbatch's options
    het = "SLURM_HET_SIZE" in os.environ
    if own.off or problem or outside or het or not os.environ.get("SLURM_JOB_ID"):
        if outside:
            sys.stderr.write(f"srobust run: {outside}. Until then it runs under plain srun, unsupervised\n")
        elif het and not own.off:
            sys.stderr.write("srobust: heterogeneous jobs are not supervised: the command runs under plain srun\n")
        elif problem:
            sys.stderr.write(
                f"srobust: {problem}; the command runs under plain srun, unsupervised. Tell your administrators\n"
            )
        elif not own.off:
            sys.stderr.write(
                "srobust: not inside an allocation: the command runs under plain srun, unsupervised; "
                "use srobust run in an sbatch file or inside salloc\n"
            )
        try:
            os.execvp("srun", ["srun", *parsed.options, "--", *parsed.command])  # noqa: S606 (the user's own command)
        except OSError as error:
            sys.stderr.write(
                f"srobust run: srun cannot be started: {error.strerror}; install Slurm's commands, or put their folder "
                "on PATH\n"
            )
            sys.exit(EXIT_NO_SRUN)
    supervisor = [sys.executable, "-m", "slurm_robust.supervise", "{fd}", *words]
    sys.exit(Launcher(srun_command.plain(parsed), supervisor).run())
