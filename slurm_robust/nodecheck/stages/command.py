"""Runs `srobust check`: arguments, output, exit code. Prolog, epilog and health check start at `fast_path`."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from slurm_robust.config import site as configuration
from slurm_robust.config.site import Config, ConfigError
from slurm_robust.core.text import NODE_NAME
from slurm_robust.nodecheck.engine import choices, gpu_profiles, registry, runner
from slurm_robust.nodecheck.engine.context import STAGES, Context, node_name
from slurm_robust.nodecheck.engine.finding import Fitness, NodeReport, Status
from slurm_robust.nodecheck.engine.isolate import no_progress

EXIT_FIT, EXIT_UNFIT, EXIT_USAGE, EXIT_UNKNOWN = 0, 1, 2, 3
_ORDER = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS, Status.SKIP)
"""The order for people: problems first; checks that are not applicable are told once for all."""
_EXITS = {Fitness.FIT: EXIT_FIT, Fitness.UNFIT: EXIT_UNFIT, Fitness.UNKNOWN: EXIT_UNKNOWN}
_FOOT = """Examples:
  srobust check                                       all checks of this node, for people
  srobust check --only gpu,network                    two groups; the others are host and torch
  srobust check --only xid --kmsg /var/log/kern.log   one check, on a saved kernel log
  srobust check --list                                what each check reads and costs, and its options

Exit codes:
  0  fit
  1  unfit; the evidence is printed
  2  wrong usage or configuration
  3  could not tell: a check failed, or ran out of time"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, unknown, word = message.partition("unrecognized arguments: ")
        near = (
            difflib.get_close_matches(word.split("=")[0].split(" ")[0], self._option_string_actions, n=1)
            if unknown
            else []
        )
        meant = f"; did you mean {near[0]}?" if near else ""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}{meant} See: {self.prog} --help\n")


def _node(name: str) -> str:
    """Return a name that Slurm could have given to a node; it becomes part of paths."""
    if not NODE_NAME.match(name):
        raise argparse.ArgumentTypeError(f"{name!r} is not a node's name")
    return name


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = _Parser(
        prog="srobust check",
        description="Is this node fit to train?",
        epilog=_FOOT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--stage", choices=STAGES, default="full", help="which checks (default: full, all of them)")
    made.add_argument("--only", action="append", default=[], metavar="A,B", help="exactly these checks or groups")
    made.add_argument(
        "--node",
        type=_node,
        metavar="NAME",
        help="Slurm's name of this node, for %%n in robust.yaml (default: the host's)",
    )
    made.add_argument("--root", metavar="DIR", help="read /proc, /sys and /dev below DIR; nothing is kept")
    made.add_argument("--kmsg", metavar="FILE", help="a saved kernel log instead of this node's; nothing is kept")
    made.add_argument("--config", metavar="FILE", help="robust.yaml to use")
    made.add_argument("--deadline", type=float, default=0.0, metavar="S", help="seconds for each check, at least")
    made.add_argument("--json", action="store_true", help="one JSON object on stdout")
    made.add_argument("--list", action="store_true", help="what each check reads and costs, and its options")
    made.add_argument("--clear-xid", metavar="GPU", help="forget latched XIDs of this GPU (0000:9b:00), or of `all`")
    made.add_argument("--real-memory-mb", type=int, default=0, metavar="MB", help="Slurm's RealMemory of this node")
    made.add_argument("--tell-slurm", action="store_true", help="write the verdict into this job's Comment")
    return made


def main(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code.
    """
    env = os.environ if env is None else env
    args = parser().parse_args(argv)
    try:
        config = configuration.load(args.config)
        return _run(args, config, env)
    except BrokenPipeError:
        # `--list | head`: the reader has closed the pipe, so nothing may be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FIT
    except (ConfigError, registry.CheckError) as error:
        print(f"srobust check: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(args: argparse.Namespace, config: Config, env: Mapping[str, str]) -> int:
    chosen = config.nodecheck
    if args.list:
        _list(config, as_json=args.json)
        return EXIT_FIT
    saved = args.root is not None or args.kmsg is not None
    usual = choices.of(config)
    usual = usual._replace(root=args.root or usual.root, kmsg=args.kmsg or usual.kmsg)
    context = usual.context(args.node or node_name(env), args.stage, env)
    context = replace(
        context, cache_dir=None if saved else context.cache_dir, real_memory_mb=max(0, args.real_memory_mb)
    )
    if args.clear_xid is not None:
        return _clear(context, args.clear_xid, config)
    only = [name for part in args.only for name in part.split(",") if name]
    for name in chosen.options:
        registry.require(name)
    checks = registry.select(args.stage, only, chosen.disable)
    checks = [replace(check, deadline_s=max(check.deadline_s or chosen.deadline_s, args.deadline)) for check in checks]
    progress = _ProgressLine(len(checks)) if sys.stderr.isatty() and not args.json else no_progress
    report = runner.run(checks, context, chosen.options, chosen.deadline_s, progress)
    _print(report, as_json=args.json)
    if args.tell_slurm:
        from slurm_robust.nodecheck.stages import gate  # noqa: PLC0415 (a plain check knows nothing of Slurm)

        if problem := gate.tell_job(report, config, env):
            print(f"srobust check: {problem}", file=sys.stderr)
    return _EXITS[report.verdict]


class _ProgressLine:
    """One line on a terminal that names the checks that are still awaited, and is removed at the end."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, waiting: Sequence[str]) -> None:
        names = ", ".join(waiting[:4]) + (", …" if len(waiting) > 4 else "")
        line = f"{self.count - len(waiting)} of {self.count} checks; waiting for {names}"[:99] if waiting else ""
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()


def _clear(context: Context, gpu: str, config: Config) -> int:
    from slurm_robust.nodecheck.checks.gpu import xid  # noqa: PLC0415

    try:
        gone = xid.clear(context, gpu, xid.check.settings(config.nodecheck.options.get("xid", {})))
    except OSError as error:
        print(f"srobust check: nothing was cleared: {error.strerror}", file=sys.stderr)
        return EXIT_UNKNOWN
    print(f"{context.node}: {gone} latched XID{'' if gone == 1 else 's'} cleared for {gpu}")
    return EXIT_FIT


def _print(report: NodeReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False))
        return
    from slurm_robust.nodecheck.catalogue.explain import wrapped  # noqa: PLC0415 (for people only)

    print(f"{report.node}: {report.verdict.value} ({report.stage})")
    width = max([11, *(len(result.name) for result in report.results)])
    for result in sorted(report.results, key=lambda result: _ORDER.index(result.finding.status)):
        if result.finding.status is Status.SKIP:
            break
        finding = result.finding
        indent = " " * (width + 11)
        print(*wrapped(finding.sentence, indent, first=f"  {finding.status.value:7} {result.name:{width}} "), sep="\n")
        if finding.remedy and finding.status.value in ("fail", "warn", "unknown"):
            print(*wrapped(finding.remedy, f"{indent}  ", first=f"{indent}→ "), sep="\n")
    skipped: dict[str, list[str]] = {}
    for result in report.results:
        if result.finding.status is Status.SKIP:
            skipped.setdefault(result.finding.sentence, []).append(result.name)
    for sentence, names in skipped.items():
        print(*wrapped(f"{sentence}: {', '.join(names)}", " " * 12, first="  skip    "), sep="\n")


def _list(config: Config, *, as_json: bool) -> None:
    from slurm_robust.nodecheck.catalogue import explain  # noqa: PLC0415 (no check needs it)

    checks = registry.select("full")
    # Whoever lists wants to know that the file is right: what a run would refuse is refused here too.
    registry.select("full", (), config.nodecheck.disable)
    for name, chosen in config.nodecheck.options.items():
        registry.get(name).require_sense(chosen)
    gpu_profiles.validate(config.nodecheck.gpu_profiles)
    print(json.dumps(explain.as_json(checks), ensure_ascii=False) if as_json else explain.as_text(checks))
    if config.nodecheck.disable and not as_json:
        print(f"\nswitched off here (nodecheck.disable): {', '.join(config.nodecheck.disable)}")
