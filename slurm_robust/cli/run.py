"""`srobust run [srun options] [--] CMD…`: a drop-in for srun."""

from __future__ import annotations

import os
import sys

import click

from slurm_robust import config as site
from slurm_robust.model import EXIT_USAGE
from slurm_robust.supervise import options, srunargs
from slurm_robust.supervise.launcher import Launcher


class RawCommand(click.Command):
    """Takes the words as they are: srun's options are srun's to read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hand all words over; only a leading --help is ours."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params["words"] = list(args)
        return []


@click.command(cls=RawCommand)
def command(words: list[str]) -> None:
    """Supervise a training step; a drop-in for srun: srobust run [srun options] [--] CMD [ARG...].

    The training step is your own srun, unchanged: stdin, stdout, stderr, signals and exit code are srun's. Beside it,
    in the same allocation, runs a watch step, one small agent a node. When a rank hangs or dies, all stacks are taken,
    the guilty node is named, and training goes on from its latest verified checkpoint: on spare nodes of the
    allocation (ask for one node more than the training needs: sbatch -N5, srobust run -N4 -n4; say -n, since srun takes
    the number of tasks from the allocation), else by a requeue for which the control daemon holds your seats.

    \b
    Own options (everything else goes to srun):
      --robust=MODE                 on, observe or off (default: the site's)
      --robust-checkpoint-dir=DIR   look up the latest verified checkpoint here; ranks get it in
                                    SROBUST_RESUME_PATH and SROBUST_RESUME_STEP
      --robust-hang-timeout=SECONDS act after this long a silence, whatever the stacks say
      --robust-layout=tp=2,pp=4     parallel sizes, for the localisation
      --robust-folder=DIR           where the incident folder goes (default: beside the job's output)
      --robust-config=FILE          robust.yaml to use

    \b
    Exit codes:
      the command's own (srun's)
      64   wrong usage, or a wrong configuration file: nothing was started
      75   a requeue was wanted and nobody came
      93   stopped for good: three attempts in a row without a new step
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    try:
        parsed = srunargs.parse(words)
        own = options.read(parsed.own, os.environ)
        site.load(own.config)
    except srunargs.UsageError as error:
        sys.stderr.write(f"srobust run: {error}\n\n{options.USAGE}")
        sys.exit(EXIT_USAGE)
    except site.ConfigError as error:
        sys.stderr.write(f"srobust run: {error}\n")
        sys.exit(EXIT_USAGE)
    if own.off or not os.environ.get("SLURM_JOB_ID"):
        if not own.off:
            sys.stderr.write(
                "srobust: no allocation here, so the command runs under plain srun, unsupervised; "
                "use it in an sbatch file or inside salloc\n"
            )
        os.execvp("srun", ["srun", *parsed.options, "--", *parsed.command])  # noqa: S606 (the user's own command)
    supervisor = [sys.executable, "-m", "slurm_robust.supervise", "{fd}", *words]
    sys.exit(Launcher(srunargs.plain(parsed), supervisor).run())
