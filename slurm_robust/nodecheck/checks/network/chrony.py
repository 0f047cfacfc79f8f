"""What does chronyd itself say of the clock?

The kernel knows whether somebody keeps the clock in step; chronyd knows how well, and whether its servers answer.
"""

from __future__ import annotations

import os

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude

CANDIDATES = ("/usr/bin/chronyc", "/usr/sbin/chronyc", "/usr/local/bin/chronyc")
_FIELDS = 14


def parse(text: str) -> Facts | None:
    """Parse one line of `chronyc -c tracking` (chronyc(1)); None if the line has another shape.

    Offset, root delay and root dispersion in seconds.
    """
    cells = text.strip().split(",")
    if len(cells) < _FIELDS:
        return None
    try:
        stratum, offset_s, delay_s, dispersion_s = int(cells[2]), float(cells[4]), float(cells[10]), float(cells[11])
    except ValueError:
        return None
    if not all(abs(value) < 1e12 for value in (stratum, offset_s, delay_s, dispersion_s)):
        return None
    return {
        "source": cells[1][:64],
        "stratum": stratum,
        "offset_s": offset_s,
        "error_s": dispersion_s + delay_s / 2,
        "leap": cells[13][:32],
    }


def probe(context: Context, options: Options) -> Facts:
    """Ask chronyd, where chronyc is installed."""
    if not context.real_root:
        return {"installed": False}
    program = next((path for path in CANDIDATES if os.access(path, os.X_OK)), "")
    if not program:
        return {"installed": False}
    import subprocess  # noqa: PLC0415 (only this probe's own process pays for it)

    try:
        done = subprocess.run(
            [program, "-n", "-c", "tracking"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=min(options["timeout_s"], context.deadline_s * 0.8),
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"installed": True, "said": None, "error": "timeout"}
    except OSError as error:
        return {"installed": True, "said": None, "error": str(error)}
    said = parse(done.stdout[:4096].decode("utf-8", "replace")) if done.returncode == 0 else None
    return {"installed": True, "said": said, "error": "" if said else f"exit code {done.returncode}"}


def _faults(said: Facts, options: Options) -> Faults:
    remedy = "`chronyc tracking`, `chronyc sources -v`"
    if said["leap"] == "Not synchronised":
        yield Fault.warn("not_synchronised", "chronyd has no server that it follows", remedy)
        return
    offset_ms, error_ms = said["offset_s"] * 1000, said["error_s"] * 1000
    if abs(offset_ms) > options["warn_offset_ms"]:
        yield Fault.warn("clock_off", f"chronyd says that the clock is {offset_ms:+.1f} ms off", remedy)
    elif error_ms > options["warn_error_ms"]:
        sentence = f"chronyd can tell the time to {error_ms:.0f} ms only"
        yield Fault.warn("clock_uncertain", sentence, remedy)


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most. A chronyc without a daemon means that something else keeps the time."""
    if not facts["installed"]:
        return Finding.skip("no_chrony", "chronyc is not installed")
    said = facts["said"]
    if said is None:
        reason = "chrony_silent" if facts["error"] == "timeout" else "no_chronyd"
        return Finding.skip(reason, f"chronyd does not answer ({facts['error']})", facts)
    sentence = f"chronyd: {said['offset_s'] * 1000:+.3f} ms off, stratum {said['stratum']}"
    return conclude(_faults(said, options), Finding.passed("synchronised", sentence, said), said)


check = Check(
    **Check.parts_of(__name__),
    reads="`chronyc -n -c tracking`, where it is installed",
    cost="one process, 5 ms",
    options={
        "warn_offset_ms": Option(50.0, "offset in ms above which it warns", "as of clock"),
        "warn_error_ms": Option(
            500.0, "ms of root dispersion and half the root delay above which it warns", "ours: NTP's own bound is 3 s"
        ),
        "timeout_s": Option(2.0, "longest wait for chronyc, in s", "ours"),
    },
)
