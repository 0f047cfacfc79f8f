"""Does this machine's own name lead to itself?

Launchers of ranks (gloo, MPI, torch's rendezvous) look up their host's name and listen at what they find.
"""

from __future__ import annotations

import socket

from slurm_robust.nodecheck.checks import Check, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import some
from slurm_robust.nodecheck.sources import host_names


def probe(context: Context, options: Options) -> Facts:
    """Read the host's name, its addresses, and which of them are this machine's."""
    if not context.real_root:
        return {"here": False}
    name = socket.gethostname()
    known = host_names.hosts_file(context).get(name.lower(), [])
    said: Facts = {"addresses": known, "error": "", "took_s": 0.0}
    if not known:
        said = host_names.resolve([name], min(options["timeout_s"], context.deadline_s * 0.6))[name]
    return {"here": True, "name": name, **said, "local": [a for a in said["addresses"] if host_names.is_local(a)]}


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: launchers can be told an address. A loopback address is the machine's, too (Debian sets it so)."""
    if not facts["here"]:
        return Finding.skip("not_here", "a saved tree resolves no names")
    name, addresses, local = facts["name"], facts["addresses"], facts["local"]
    remedy = f"`getent ahosts {name}`; put the machine's name and address into /etc/hosts"
    if facts["error"] == "timeout":
        sentence = f"no answer of the resolver for the machine's own name ({name})"
        return Finding.warn("resolver_silent", sentence, remedy, facts)
    if not addresses:
        return Finding.warn("own_name_unresolved", f"the machine's name {name} does not resolve", remedy, facts)
    if not local:
        sentence = f"the machine's name {name} leads to {some(addresses)}, which is another machine's"
        return Finding.warn("own_name_foreign", sentence, remedy, facts)
    return Finding.passed("own_name_local", f"{name} leads to {some(local)}", facts)


check = Check(
    **Check.parts_of(__name__),
    reads="/etc/hosts, and the system's resolver where the name is not in there; bind(2) to what was found",
    cost="one read, or a process for the resolver, 2–20 ms",
    options={"timeout_s": Option(2.5, "longest wait for the resolver, in s", "as of controller_name")},
)
