"""Can users' jobs resolve names: are the resolver's files there and readable for everyone?"""

from __future__ import annotations

import os
import stat

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Options
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import small_files

_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


def probe(context: Context, options: Options) -> Facts:
    """Read of each file whether it exists, is a link to nothing, is open to all; and the name servers."""
    files: Facts = {}
    for name in _FILES:
        path = context.path(name)
        try:
            link = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 (text of a link)
        except OSError:
            link = ""
        if link.startswith("/") and not context.real_root:
            continue  # in a copied tree it leads out of it
        try:
            files[name] = {"link": link, "mode": stat.S_IMODE(path.stat().st_mode)}
        except OSError:
            files[name] = {"link": link, "mode": None}
    lines = [line.split() for line in small_files.read_text(context.path("/etc/resolv.conf"), 1 << 16).splitlines()]
    servers = [cells[1] for cells in lines if len(cells) > 1 and cells[0] == "nameserver"]
    return {"files": files, "servers": servers[:8]}


def _faults(facts: Facts) -> Faults:
    for name, file in facts["files"].items():
        if file["mode"] is None and file["link"]:
            sentence = f"{name} is a link to {file['link']}, which does not exist"
            yield Fault.warn("file_dangling", sentence, f"`ls -l {name}`; is systemd-resolved running?")
        elif file["mode"] is not None and not file["mode"] & stat.S_IROTH:
            yield Fault.warn("file_closed", f"users cannot read {name}", f"`chmod 644 {name}`")


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most; a machine without name servers may do with /etc/hosts."""
    there = [name for name, file in facts["files"].items() if file["mode"] is not None]
    said = f"name servers: {some(facts['servers'])}" if facts["servers"] else "no name server is named"
    if there:
        healthy = Finding.passed("resolver_readable", said, facts)
    else:
        healthy = Finding.skip("no_files", "the resolver's files cannot be seen", facts)
    return conclude(_faults(facts), healthy, facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/etc/resolv.conf, and the modes of it, /etc/hosts and /etc/nsswitch.conf",
    cost="one read and three stats",
    lane="files",
)
