"""Reads the `--robust…` options of `srobust run`. The SPANK plugin offers the same options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from slurm_robust.core.mode import Mode
from slurm_robust.supervise.launch.srun_command import UsageError

if TYPE_CHECKING:
    from slurm_robust.config.site import Config

USAGE = """\
usage: srobust run [srun options] [--robust[=on|observe|off]] [--robust-…=…] [--] CMD [ARG…]

  --robust=MODE                 on: act; observe: watch and report only; off: plain srun (default: the site's)
  --robust-checkpoint-dir=DIR   look up the latest verified checkpoint here, and give every rank the same
  --robust-hang-timeout=SECONDS act after this long a silence, whatever the stacks show
  --robust-layout=tp=2,pp=4     parallel sizes, for the localisation (and order=tp-pp-dp)
  --robust-code=DIR             run from a snapshot of this folder; `srobust update` puts a new one in force
  --robust-replay=CMD           what a replay runs in groups of nodes; `same`: the command itself. It must not save
                                where SROBUST_REPLAY=1
  --robust-warm[=MODULES]       keep a warm step beside the training: a restart in the allocation need not import
                                anything again. MODULES, with commas, are imported besides what the ranks import; off
  --robust-folder=DIR           where the incident folder goes (default: beside the job's output)
  --robust-config=FILE          robust.yaml to use

SROBUST_MODE, SROBUST_CHECKPOINT_DIR, SROBUST_HANG_TIMEOUT and SROBUST_LAYOUT stand in for an option that is not typed.
Everything else is srun's own. srobust run --help tells more.
"""
NAMES = ("checkpoint-dir", "hang-timeout", "layout", "code", "replay", "warm", "folder", "config")
"""The words that may follow `--robust-`."""
_KNOWN = frozenset({"mode", *NAMES})
VARIABLES = {"mode": "SROBUST_MODE", "hang-timeout": "SROBUST_HANG_TIMEOUT", "layout": "SROBUST_LAYOUT"}
"""Variables that replace missing options: the SPANK plugin sets them from sbatch's options."""


class RunOptions(NamedTuple):
    """The user's options. `mode` is None for the site's mode; with `off` no supervisor is started.

    Attributes:
        replay: The command of a replay of the training, as a shell reads it; `same` for the job's own command; empty
            for a reference model.
        warm: Modules that warm processes import besides the modules of the ranks; None for the site's choice.
        no_warm: Whether the warm step is switched off, even if the site chose one.
    """

    mode: Mode | None = None
    off: bool = False
    checkpoint_dir: str = ""
    hang_timeout_s: float | None = None
    layout: Mapping[str, int] = MappingProxyType({})
    layout_order: str = ""
    code: str = ""
    replay: str = ""
    warm: tuple[str, ...] | None = None
    no_warm: bool = False
    folder: str = ""
    config: str = ""

    def applied(self, config: Config) -> Config:
        """Return the site's configuration, overridden by these options."""
        import msgspec  # noqa: PLC0415 (a launch does not wait for it)

        if self.mode is not None:
            config = msgspec.structs.replace(config, mode=self.mode)
        if self.hang_timeout_s is not None:
            changed = msgspec.structs.replace(config.supervise, action_limit_s=self.hang_timeout_s)
            config = msgspec.structs.replace(config, supervise=changed)
        if self.warm is not None or self.no_warm:
            modules = (*config.supervise.warm_modules, *(self.warm or ()))
            changed = msgspec.structs.replace(config.supervise, warm_restarts=not self.no_warm, warm_modules=modules)
            config = msgspec.structs.replace(config, supervise=changed)
        return config


def read(own: Mapping[str, str], env: Mapping[str, str]) -> RunOptions:
    """Check the options, and the variables that replace missing ones; a wrong variable is ignored (`mistakes`).

    Raises:
        UsageError: an unknown option, or a value that is not allowed; the message says what is allowed.
    """
    for name in own:
        if name not in _KNOWN:
            import difflib  # noqa: PLC0415 (for a mistake only)

            known = difflib.get_close_matches(name, NAMES, n=1)
            meant = f"; did you mean --robust-{known[0]}?" if known else ""
            raise UsageError(f"--robust-{name}: there is no such option{meant}")
    found = _checked({**own, **{name: env[VARIABLES[name]] for name in _stand_ins(own, env) if not _wrong(name, env)}})
    return found._replace(checkpoint_dir=found.checkpoint_dir or env.get("SROBUST_CHECKPOINT_DIR", ""))


def mistakes(own: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is ignored for its wrong value. It may have been set far away."""
    return [f"{why}; passed over" for name in _stand_ins(own, env) if (why := _wrong(name, env))]


def _stand_ins(own: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    return [name for name, variable in VARIABLES.items() if name not in own and env.get(variable)]


def _wrong(name: str, env: Mapping[str, str]) -> str:
    try:
        _checked({name: env[VARIABLES[name]]})
    except UsageError as error:
        option = "--robust" if name == "mode" else f"--robust-{name}"
        said = str(error).replace(option, VARIABLES[name], 1)
        return "".join(c if c.isprintable() else "?" for c in said)
    return ""


def _checked(own: Mapping[str, str]) -> RunOptions:
    mode_text = own.get("mode", "")
    modes = {"": None, "on": Mode.ACT, "act": Mode.ACT, "observe": Mode.OBSERVE, "off": None}
    if mode_text not in modes:
        raise UsageError(f"--robust={mode_text[:80]}: expected on, observe or off")
    hang_s: float | None = None
    if "hang-timeout" in own:
        try:
            hang_s = float(own["hang-timeout"])
        except ValueError:
            hang_s = 0.0
        if not 1.0 <= hang_s <= 7 * 86400.0:
            raise UsageError(f"--robust-hang-timeout={own['hang-timeout'][:80]}: expected seconds, 1 to 604800")
    if "replay" in own and not own["replay"].strip():
        raise UsageError("--robust-replay=: expected a command, or same")
    modules = tuple(name for name in own.get("warm", "").split(",") if name not in ("", "on", "off"))
    if wrong := next((name for name in modules if not all(part.isidentifier() for part in name.split("."))), ""):
        raise UsageError(f"--robust-warm={wrong[:80]}: expected names of modules, with commas between them, or off")
    layout, order = _layout(own.get("layout", ""))
    return RunOptions(
        mode=Mode.ACT if "mode" in own and not mode_text else modes[mode_text],
        off=mode_text == "off",
        checkpoint_dir=own.get("checkpoint-dir", ""),
        hang_timeout_s=hang_s,
        layout=layout,
        layout_order=order,
        code=own.get("code", ""),
        replay=own.get("replay", ""),
        warm=modules if own.get("warm", "off") != "off" else None,
        no_warm=own.get("warm") == "off",
        folder=own.get("folder", ""),
        config=own.get("config", ""),
    )


def _layout(text: str) -> tuple[Mapping[str, int], str]:
    if not text:
        return {}, ""
    # Few launches name a layout, and this loads all that reads evidence.
    from slurm_robust.localize.layout import LayoutError, parse  # noqa: PLC0415

    try:
        return parse(text)
    except LayoutError as error:
        raise UsageError(f"--robust-layout={text[:80]}: {error}") from None
