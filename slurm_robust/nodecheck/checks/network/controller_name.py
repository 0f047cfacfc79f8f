"""Do the names of Slurm's controllers resolve, and soon?"""

from __future__ import annotations

import os

from slurm_robust.nodecheck.checks import Check, CheckError, Context, Facts, Finding, Option, Options
from slurm_robust.nodecheck.engine.faults import Fault, Faults, conclude, some
from slurm_robust.nodecheck.sources import host_names, slurm_conf

_CONNECT_S = 1.0


def validate(options: Options) -> None:
    """Refuse what cannot be a host's name."""
    for host in options["hosts"]:
        if not isinstance(host, str) or not host_names.is_host(host):
            raise CheckError(f"nodecheck.options.controller_name.hosts: {host!r} is not a host's name")


def probe(context: Context, options: Options) -> Facts:
    """Read each controller's addresses: as written, from /etc/hosts, or from the resolver."""
    text = "" if options["hosts"] else slurm_conf.read(context, options["slurm_conf"], os.environ)
    hosts, port = slurm_conf.controllers(text)
    validate(options)
    hosts = list(options["hosts"]) or hosts
    known = host_names.hosts_file(context)
    found: dict[str, Facts] = {}
    ask = []
    for host in hosts:
        if host_names.is_address(host):
            found[host] = {"how": "address", "addresses": [host], "error": "", "took_s": 0.0}
        elif host.lower() in known:
            found[host] = {"how": "hosts", "addresses": known[host.lower()], "error": "", "took_s": 0.0}
        elif context.real_root:
            ask.append(host)
    timeout_s = min(options["timeout_s"], context.deadline_s * 0.6)
    for host, said in host_names.resolve(ask, timeout_s).items():
        found[host] = {"how": "resolver", **said}
    if options["connect"] and context.real_root:
        for host in hosts:
            if host in found and found[host]["addresses"]:
                found[host]["connect"] = host_names.connect(found[host]["addresses"][0], port, _CONNECT_S / len(hosts))
    return {"hosts": hosts, "found": found, "port": port}


def _faults(facts: Facts, options: Options) -> Faults:
    found = facts["found"]
    late = [host for host, said in found.items() if said["error"] == "timeout"]
    wrong = [host for host, said in found.items() if not said["addresses"] and host not in late]
    slow = [host for host, said in found.items() if said["addresses"] and said["took_s"] > options["slow_s"]]
    deaf = [host for host, said in found.items() if said.get("connect", {}).get("error")]
    remedy = "`getent ahosts {}`; look at /etc/resolv.conf, or put the controllers into /etc/hosts"
    if wrong:
        sentence = f"controller {some(wrong)} does not resolve: {found[wrong[0]]['error'] or 'no address'}"
        yield Fault.warn("controller_unresolved", sentence, remedy.format(wrong[0]))
    if late:
        sentence = f"no answer of the resolver for controller {some(late)}"
        yield Fault.warn("resolver_silent", sentence, remedy.format(late[0]))
    if slow:
        sentence = f"the resolver took {found[slow[0]]['took_s']:.1f} s for controller {slow[0]}"
        yield Fault.warn("resolver_slow", sentence, remedy.format(slow[0]))
    if deaf:
        sentence = f"controller {some(deaf)} takes no connection: {found[deaf[0]]['connect']['error']}"
        yield Fault.warn("controller_unreachable", sentence, "`scontrol ping`; look at network and firewall")


def judge(facts: Facts, options: Options) -> Finding:
    """Warn at most: a name server that is down affects all nodes at once, and is no node's fault."""
    if not facts["hosts"]:
        return Finding.skip("no_controller", "no slurm.conf names a controller here")
    if not facts["found"]:
        return Finding.skip("not_here", "a saved tree resolves no names", facts)
    healthy = Finding.passed("controller_resolves", f"{some(facts['found'])} resolves", facts)
    return conclude(_faults(facts, options), healthy, facts)


check = Check(
    **Check.parts_of(__name__),
    reads="slurm.conf, /etc/hosts, and the system's resolver for names that are not in there",
    cost="two reads; a process for each name that the resolver is asked for, 2–20 ms",
    options={
        "hosts": Option([], "list of names to look up instead of slurm.conf's", "ours: slurm.conf knows"),
        "slurm_conf": Option("", "the file, where it stands in none of Slurm's usual places", "slurm.conf(5)"),
        "timeout_s": Option(2.5, "longest wait for the resolver, in s", "ours: each server is asked for 5 s"),
        "slow_s": Option(1.0, "s above which an answer warns", "ours: a name server next door answers within ms"),
        "connect": Option(False, "also connect to slurmctld's TCP port", "ours: slurmd itself tells Slurm so"),
    },
)
