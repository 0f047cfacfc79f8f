"""`srobust standby`: the pools, and how large they should be."""

from __future__ import annotations

from typing import Any

import click

from slurm_robust.cli.state import clock, config_to_show, load_config, load_state, print_json, source_options
from slurm_robust.cli.table import sentence, table
from slurm_robust.cli.teaching import SHOWN, lesson
from slurm_robust.config.site import StandbyConfig

_EXAMPLES = (
    ("srobust standby", "pools, members, missing members"),
    ("srobust standby size --machines 512 --daily-failure-rate 0.005", "how many to hold"),
    ("sudo srobust standby size --from-history --since 60d", "by the failures of this site"),
)


@click.group("standby", invoke_without_command=True, epilog=lesson(_EXAMPLES, SHOWN))
@source_options
@click.pass_context
def command(context: click.Context, path: str | None, as_json: bool) -> None:
    """Show the standby pools: nodes held ready, a pool for each hardware class."""
    if context.invoked_subcommand is not None:
        return
    config = config_to_show(path)
    state = load_state(config)
    pools = state["standby"]
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
    if config.standby.size != 0 and state.get("mode") == "observe":
        sentence("In mode observe no pool is made, and none is filled: the daemon makes them once its mode is act.")
    if pools:
        table("Standby pools", columns, rows, drop=("partition", "until"))
        for pool in pools:
            if pool.get("size_reason"):
                click.echo(f"{pool['name']}: {pool['size_reason']}")
        tell_suspects(pools)
    else:
        sentence(_no_pool(config.standby, reading=bool(state.get("reading"))))


def _no_pool(wanted: StandbyConfig, *, reading: bool) -> str:
    """Return why there is no pool, and what to do."""
    if wanted.size == 0:
        return "none: standby.size in robust.yaml is 0; to hold nodes ready, set it, and type systemctl reload srobustd"
    if reading:
        return "none yet: the daemon has just begun, and still reads what Slurm has; type this again in a few seconds"
    of = f" of {', '.join(wanted.partitions)} (standby.partitions)" if wanted.partitions else ""
    return (
        f"none: standby.size in robust.yaml is {wanted.size}, and no node{of} is free for a pool: idle, and in no "
        "reservation that begins within the hour. Nothing is to be done: a pool is made once one is; who uses them: "
        "srobust nodes"
    )


def suspects(pools: list[dict[str, Any]]) -> list[str]:
    """Return a sentence about each member that a job has suspected within a day, and that stayed in service."""
    return [
        f"{s['node']}: job {s['job']} suspected it at {clock(s['at_s'])}, and it stayed in service; "
        + (
            f"checked in full since{s['word'] and ' (' + s['word'] + ')'}: held where no other node is free"
            if s["checked_at_s"]
            else "not checked in full since: the last choice until it is"
        )
        for pool in pools
        for s in pool.get("suspected", ())
    ]


def tell_suspects(pools: list[dict[str, Any]]) -> None:
    """Print these sentences."""
    for line in suspects(pools):
        sentence(line)


_SIZED = [
    (0, "printed"),
    (1, "the journal or Slurm cannot be read; the message says what to check"),
    (2, "wrong usage"),
]


@command.command(epilog=lesson(_EXAMPLES[1:], _SIZED))
@click.option("--machines", type=click.IntRange(1), help="Machines of one hardware class.")
@click.option("--daily-failure-rate", type=click.FloatRange(0, 1), help="Of one machine, a day.")
@click.option("--quantile", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.99, show_default=True)
@click.option("--from-history", is_flag=True, help="Of each hardware class, by the failures in the daemon's journal.")
@click.option("--since", default="30d", show_default=True, help="How far back, with --from-history: 12h, 30d, 8w.")
@source_options
def size(
    *,
    machines: int | None,
    daily_failure_rate: float | None,
    quantile: float,
    from_history: bool,
    since: str,
    path: str | None,
    as_json: bool,
) -> None:
    """How many standby nodes a day's failures need: the smallest k with P(failures <= k) >= quantile.

    Without --from-history, --machines and --daily-failure-rate are needed.
    """
    from slurm_robust.policy.cluster.standby_size import standby_size  # noqa: PLC0415 (loaded for this command only)

    given = machines is not None or daily_failure_rate is not None
    if from_history:
        if given:
            raise click.UsageError("--from-history counts machines and failures itself: leave the other options out")
        _from_history(path, since, quantile, as_json=as_json)
        return
    if machines is None or daily_failure_rate is None:
        raise click.UsageError("give --machines and --daily-failure-rate, or --from-history")
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


def _from_history(path: str | None, since: str, quantile: float, *, as_json: bool) -> None:
    """Print a pool size for each hardware class that Slurm has now, by the failures in the journal."""
    from slurm_robust.cli.standby_history import suggestions_now  # noqa: PLC0415 (loaded for this command only)
    from slurm_robust.policy.cluster.standby_history import figure  # noqa: PLC0415 (the same)

    rows = suggestions_now(load_config(path), since, quantile)
    if as_json:
        print_json(rows)
        return
    table(
        f"Standby nodes, by the failures of the last {since}",
        ("partition", "gres", "machines", "failures", "node-days", "a node-day (95 %)", "standby (95 %)"),
        [
            (
                *(row["partition"], row["gres"] or "none", row["machines"], row["failures"], figure(row["node_days"])),
                _range(row["daily_failure_rate"], row["daily_failure_rate_low"], row["daily_failure_rate_high"]),
                _range(row["standby"], row["standby_low"], row["standby_high"]),
            )
            for row in rows
        ],
        drop=("gres", "node-days"),
    )
    for row in rows:
        click.echo(f"{row['partition']} {row['gres'] or '(no gres)'}: {row['sentence']}")


def _range(value: float | None, low: float | None, high: float | None) -> str:
    """Return the value with two digits and its interval; a dash if it is not known."""
    from slurm_robust.policy.cluster.standby_history import figure  # noqa: PLC0415 (loaded for this command only)

    if value is None or low is None or high is None:
        return "–"
    return f"{figure(value)} ({figure(low)}–{figure(high)})"
