"""The `--robust…` options, and the variables that stand in for them."""

from __future__ import annotations

import pytest

from slurm_robust.config import site as config
from slurm_robust.core.model import Mode
from slurm_robust.supervise.launch import options
from slurm_robust.supervise.launch.srun_command import UsageError


def test_options_go_over_the_sites_choice() -> None:
    """What the engineer types wins for this job."""
    own = options.read({"mode": "on", "hang-timeout": "90", "layout": "tp=2,pp=4"}, {})
    applied = own.applied(config.Config())
    assert (applied.mode, applied.supervise.action_limit_s, own.layout) == (Mode.ACT, 90.0, {"tp": 2, "pp": 4})
    ordered = options.read({"layout": "tp=2,pp=4,order=pp-tp-dp"}, {})
    assert (ordered.layout, ordered.layout_order) == ({"tp": 2, "pp": 4}, "pp-tp-dp")
    assert options.read({"replay": "./train.sh --steps 9"}, {}).replay == "./train.sh --steps 9"
    assert options.read({}, {"SROBUST_CHECKPOINT_DIR": "/ck"}).checkpoint_dir == "/ck"


def test_warm_restarts_are_asked_for_with_modules_or_without() -> None:
    """Over the site's choice, in both directions; without a word of the engineer the site's choice holds."""

    def applied(text: str | None, **site: object) -> tuple[bool, tuple[str, ...]]:
        own = options.read({} if text is None else {"warm": text}, {})
        supervise = own.applied(config.Config(supervise=config.SuperviseConfig(**site))).supervise  # type: ignore[arg-type]
        return supervise.warm_restarts, supervise.warm_modules

    assert applied(None) == (False, ())
    assert applied("") == applied("on") == (True, ())
    assert applied("lib.models,lib.data") == (True, ("lib.models", "lib.data"))
    assert applied(None, warm_restarts=True, warm_modules=("a",)) == (True, ("a",))
    assert applied("b", warm_restarts=True, warm_modules=("a",)) == (True, ("a", "b"))
    assert applied("off", warm_restarts=True) == (False, ())
    with pytest.raises(UsageError, match="names of modules"):
        options.read({"warm": "./mine.py"}, {})


def test_what_sbatch_was_given_holds_where_nothing_is_typed() -> None:
    """`sbatch --robust=observe --robust-layout=… script`, with `srobust run` in the script; typed there, that holds."""
    env = {"SROBUST_MODE": "observe", "SROBUST_HANG_TIMEOUT": "90", "SROBUST_LAYOUT": "tp=2,order=pp-tp"}
    own = options.read({}, env)
    assert (own.mode, own.off, own.hang_timeout_s) == (Mode.OBSERVE, False, 90.0)
    assert (own.layout, own.layout_order) == ({"tp": 2}, "pp-tp")
    typed = options.read({"mode": "", "hang-timeout": "5", "layout": "dp=4"}, env)
    assert (typed.mode, typed.hang_timeout_s, typed.layout, typed.layout_order) == (Mode.ACT, 5.0, {"dp": 4}, "")
    assert options.read({}, {"SROBUST_MODE": "off"}).off


def test_a_wrong_variable_is_passed_over() -> None:
    """It may have been set far away: told, as the plugin does, and the job runs."""
    env = {"SROBUST_MODE": "perhaps", "SROBUST_HANG_TIMEOUT": "soon\n", "SROBUST_LAYOUT": "tp=0"}
    assert options.read({}, env) == options.RunOptions()
    told = options.mistakes({}, env)
    assert [line.split("=")[0] for line in told] == ["SROBUST_MODE", "SROBUST_HANG_TIMEOUT", "SROBUST_LAYOUT"]
    assert "expected on, observe or off" in told[0]
    assert all("\n" not in line for line in told)
    assert len(options.mistakes({"mode": "on"}, env)) == 2
    assert options.mistakes({}, {"SROBUST_MODE": "on", "SROBUST_LAYOUT": ""}) == []


@pytest.mark.parametrize(
    "own",
    [
        {"mode": "perhaps"},
        {"hang-timeout": "soon"},
        {"hang-timeout": "0"},
        {"layout": "tp=0"},
        {"layout": "x=2"},
        {"replay": " "},
        {"layout": "order=tp-pp"},
        {"spare": ""},
    ],
)
def test_wrong_options_say_what_is_allowed(own: dict[str, str]) -> None:
    """Names the option."""
    with pytest.raises(UsageError, match=f"--robust(-{next(iter(own))})?"):
        options.read(own, {})
