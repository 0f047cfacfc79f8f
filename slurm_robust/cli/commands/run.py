"""`srobust run [srun options] [--] CMD…`: a drop-in for srun."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from slurm_robust.cli import run_step
from slurm_robust.cli.teaching import lesson
from slurm_robust.supervise.launch import options


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
            (
                93,
                "stopped for good: three attempts in a row (unrelated: six), or 30 launches an hour, without a step",
            ),
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
      --robust-replay=CMD           what a replay runs in groups of nodes; `same`: the command itself. It must
                                    not save where SROBUST_REPLAY=1
      --robust-warm[=MODULES]       keep a warm step beside the training: a restart in the allocation need not
                                    import anything again. MODULES, with commas, are imported besides what the
                                    ranks import; off
      --robust-folder=DIR           where the incident folder goes (default: beside the job's output)
      --robust-config=FILE          robust.yaml to use
      --robust-ready                alone: start nothing; exit with 0 if srobust run finds all that it loads

    Options that are not given are taken from sbatch --robust, by the variables SROBUST_MODE, SROBUST_CHECKPOINT_DIR,
    SROBUST_HANG_TIMEOUT and SROBUST_LAYOUT.
    """  # noqa: D301 (click's own mark for text that is not to be wrapped)
    sys.exit(run_step.run(words))
