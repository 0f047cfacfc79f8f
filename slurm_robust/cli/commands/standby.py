"""`srobust standby`: the pools, and how large they should be."""

from __future__ import annotations

import click

from slurm_robust.cli.state import clock, load_config, load_state, print_json, source_options
from slurm_robust.cli.table import table
from slurm_robust.cli.teaching import SHOWN, lesson

_EXAMPLES = (
    ("srobust standby", "pools, members, missing members"),
    ("srobust standby size --machines 512 --daily-failure-rate 0.005", "how many to hold"),
)


@click.group("standby", invoke_without_command=True, epilog=lesson(_EXAMPLES, SHOWN))
@source_options
@click.pass_context
def command(context: click.Context, path: str | None, as_json: bool) -> None:
    """Show the standby pools: nodes held ready, a pool for each hardware class."""
    if context.invoked_subcommand is not None:
        return
    pools = load_state(load_config(path))["standby"]
    if as_json:
        print_json(pools)
        return
    rows = [
        (
            *(p.get(k, "") for k in ("name", "partition", "gres", "held", "unchecked", "wanted", "short")),
            clock(p["ends_at_s"]),
        )
        for p in pools
    ]
    columns = ("pool", "partition", "gres", "holds", "unchecked", "wanted", "short", "until")
    if pools:
        table("Standby pools", columns, rows, drop=("partition", "until"))
    else:
        click.echo("none: standby.size in robust.yaml is 0, or no node is free")


@command.command(epilog=lesson(_EXAMPLES[1:], [(0, "printed"), (2, "wrong usage")]))
@click.option("--machines", type=click.IntRange(1), required=True, help="Machines of one hardware class.")
@click.option("--daily-failure-rate", type=click.FloatRange(0, 1), required=True, help="Of one machine, a day.")
@click.option("--quantile", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.99, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For tools: documented, stable.")
def size(machines: int, daily_failure_rate: float, quantile: float, as_json: bool) -> None:
    """How many standby nodes a day's failures need: the smallest k with P(failures <= k) >= quantile."""
    from slurm_robust.policy.cluster.standby_size import standby_size  # noqa: PLC0415 (loaded for this command only)

    try:
        count = standby_size(machines, daily_failure_rate, quantile)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        print_json(
            {"machines": machines, "daily_failure_rate": daily_failure_rate, "quantile": quantile, "standby": count}
        )
    else:
        click.echo(f"{count}")
