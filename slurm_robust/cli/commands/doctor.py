"""`srobust doctor`: is this site set up so that jobs can be saved?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slurm_robust.cli.state import load_config, print_json
from slurm_robust.cli.teaching import lesson

EXIT_FINE, EXIT_WRONG, EXIT_USAGE, EXIT_NO_SLURM = 0, 1, 2, 3
_EXAMPLES = (
    ("srobust doctor", "on the controller: slurm.conf; on a node: the scripts and py-spy"),
    ("srobust doctor --all", "also the points that are well"),
)
_CODES = (
    (EXIT_FINE, "nothing is wrong"),
    (EXIT_WRONG, "something is wrong; each finding comes with the line that fixes it"),
    (EXIT_USAGE, "wrong usage or configuration"),
    (EXIT_NO_SLURM, "Slurm did not answer"),
)
_LEVELS = ("wrong", "unknown", "advice", "ok")


@click.command("doctor", epilog=lesson(_EXAMPLES, _CODES))
@click.option("--config", "path", type=click.Path(dir_okay=False), help="robust.yaml to use (default: as the daemon).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--all", "everything", is_flag=True, help="Also show the points that are well.")
def command(path: str | None, as_json: bool, everything: bool) -> None:
    """Is this site set up so that jobs can be saved? Each finding comes with the line that fixes it.

    It changes nothing.
    """
    from slurm_robust import config as configuration  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.doctor import machine, plugin, settings  # noqa: PLC0415 (the same)
    from slurm_robust.slurm.errors import SlurmError  # noqa: PLC0415 (the same)
    from slurm_robust.slurm.factory import connect  # noqa: PLC0415 (the same)

    try:
        config = load_config(path)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    problem = ""
    said: dict[str, str] = {}
    try:
        said = connect(config.slurm).settings()
    except SlurmError as error:
        problem = str(error)
    found = settings.judge(said, config) if said else []
    found += plugin.look(said)
    found += machine.look(said, Path(used) if (used := configuration.find(path)) else None)
    found.sort(key=lambda advice: _LEVELS.index(advice.level.value))
    wrong = any(advice.level.value == "wrong" for advice in found)
    if as_json:
        shown = [{"level": a.level.value, "about": a.about, "sentence": a.sentence, "fix": a.fix} for a in found]
        print_json({"slurm": not problem, "problem": problem, "findings": shown})
    else:
        for advice in found:
            if everything or advice.level.value != "ok":
                click.echo(f"{advice.level.value:8} {advice.about}: {advice.sentence}")
                if advice.fix:
                    click.echo(f"{'':8} → {advice.fix}")
        well = sum(1 for advice in found if advice.level.value == "ok")
        click.echo(f"{well} of {len(found)} points are well{'' if everything else ' (shown with --all)'}")
        if problem:
            click.echo(f"slurm.conf was not checked: {problem}", err=True)
    sys.exit(EXIT_NO_SLURM if problem else EXIT_WRONG if wrong else EXIT_FINE)
