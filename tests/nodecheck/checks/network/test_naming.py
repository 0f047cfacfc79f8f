from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_trees import write

from slurm_robust.nodecheck.engine import registry, runner
from slurm_robust.nodecheck.engine.context import Context
from slurm_robust.nodecheck.engine.finding import Finding
from slurm_robust.nodecheck.sources import host_names, slurm_conf


@pytest.mark.parametrize(
    ("text", "hosts", "port"),
    [
        ("SlurmctldHost=ctl1\nSlurmctldHost=ctl2\n", ["ctl1", "ctl2"], 6817),
        ("slurmctldhost = ctl1(10.0.0.1)  # the first\nSlurmctldPort=7000-7003\n", ["10.0.0.1"], 7000),
        ("SlurmctldHost=ctl1(fd00::1)\n", ["fd00::1"], 6817),
        ("ControlMachine=old ControlAddr=10.0.0.9\nBackupController=spare\n", ["10.0.0.9", "spare"], 6817),
        ("ControlMachine=old\n", ["old"], 6817),
        ("#SlurmctldHost=ctl1\nClusterName=x\n", [], 6817),
        ("SlurmctldHost=$(id)\nSlurmctldHost=../x\nSlurmctldHost=-oops\nSlurmctldPort=999999\n", [], 6817),
        ("SlurmctldHost=ctl1\nSlurmctldHost=ctl1\nSlurmctldPort=0\n", ["ctl1"], 6817),
    ],
)
def test_controllers_are_read_from_slurm_conf(text: str, hosts: list[str], port: int) -> None:
    """Each by the address that Slurm contacts it by; what is no host's name is none."""
    assert slurm_conf.controllers(text) == (hosts, port)


@given(
    st.text() | st.lists(st.sampled_from(["SlurmctldHost=", "a(", ")", "SlurmctldPort=", "#", "9", "\n"])).map("".join)
)
def test_any_slurm_conf_and_hosts_file_is_read(text: str) -> None:
    """Truncated or odd files give what they can, and nothing but names of hosts."""
    hosts, port = slurm_conf.controllers(text)
    assert all(host_names.is_host(host) for host in hosts)
    assert 0 < port < 65536
    assert all(host_names.is_address(a) for addresses in host_names.in_hosts(text).values() for a in addresses)


def test_the_hosts_file() -> None:
    """Aliases, comments, IPv6, and lines that are none."""
    text = "127.0.0.1 localhost\n10.0.0.1\tCTL1.example ctl1 # main\nfd00::1 ctl1\nnonsense x\n10.0.0.2\n#10.0.0.3 y\n"
    assert host_names.in_hosts(text) == {
        "localhost": ["127.0.0.1"],
        "ctl1.example": ["10.0.0.1"],
        "ctl1": ["10.0.0.1", "fd00::1"],
    }


def test_slurm_conf_of_the_environment_counts_only_where_it_is_root_s(tmp_path: Path) -> None:
    """A user's file, one that others may write, a link, a pipe, a folder: none of them is believed."""
    context = Context("n1")
    conf = tmp_path / "slurm.conf"
    conf.write_text("SlurmctldHost=mine\n")
    usual = slurm_conf.read(context, "", {})
    read = lambda path: slurm_conf.read(context, "", {"SLURM_CONF": str(path)})  # noqa: E731
    assert read(conf) == "SlurmctldHost=mine\n"
    (tmp_path / "link").symlink_to(conf)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", tmp_path, tmp_path / "none", "slurm.conf", "/x\0y"):
        assert read(path) == usual
    conf.chmod(0o666)
    assert read(conf) == usual
    conf.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(conf, 54321, 54321)
        assert read(conf) == usual


def found(name: str, context: Context | None = None, **options: Any) -> Finding:
    """What one check finds on this machine."""
    check = registry.get(name)
    said = runner.run([check], context or Context("n1"), {name: options}, 5.0).results[0].finding
    assert said.remedy or said.status.value not in ("fail", "warn"), said
    return said


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A resolver that notes what it is asked, and an empty /etc/hosts. The file in which it notes."""
    note = tmp_path / "asked"
    note.write_text("")
    real = socket.getaddrinfo

    def resolver(host: str, *rest: Any, **more: Any) -> Any:
        if host_names.is_address(host):
            return real(host, *rest, **more)
        with note.open("a") as file:
            file.write(f"{host}\n")
        if host.startswith("hang"):
            time.sleep(60)
        if host.startswith("slow"):
            time.sleep(0.3)
        if host.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.99" if "far" in host else "127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setattr(host_names, "hosts_file", lambda context: {"known": ["10.0.0.1"]})
    return note


@pytest.mark.parametrize(
    ("hosts", "expected", "questions"),
    [
        (["ctl1"], ("pass", "controller_resolves"), ["ctl1"]),
        (["known", "10.0.0.2", "fd00::1"], ("pass", "controller_resolves"), []),  # nothing to ask
        (["KNOWN"], ("pass", "controller_resolves"), []),
        (["none1", "ctl1"], ("warn", "controller_unresolved"), ["ctl1", "none1"]),
        (["slow1"], ("warn", "resolver_slow"), ["slow1"]),
        (["hang1", "ctl1"], ("warn", "resolver_silent"), ["ctl1", "hang1"]),
    ],
)
def test_controller_names(asked: Path, hosts: list[str], expected: tuple[str, str], questions: list[str]) -> None:
    """The resolver is asked only for what /etc/hosts does not know, and not waited for; nothing here fails a node."""
    started_s = time.monotonic()
    said = found("controller_name", hosts=hosts, slow_s=0.2, timeout_s=1.0)
    assert (said.status.value, said.reason) == expected
    assert sorted(asked.read_text().split()) == questions
    assert time.monotonic() - started_s < 30


def test_the_controllers_of_a_saved_tree_are_read_and_not_asked_for(asked: Path, tmp_path: Path) -> None:
    """Its names are not this machine's business."""
    context = Context("n1", root=tmp_path / "root")
    assert found("controller_name", context).reason == "no_controller"
    write(tmp_path / "root", {"/etc/slurm/slurm.conf": "SlurmctldHost=ctl1\n"})
    assert found("controller_name", context).reason == "not_here"
    write(tmp_path / "root", {"/etc/slurm/slurm.conf": "SlurmctldHost=ctl1(10.0.0.1)\n"})
    assert found("controller_name", context).reason == "controller_resolves"
    assert not asked.read_text()


def test_a_connection_is_tried_only_where_the_site_asks_for_it(tmp_path: Path) -> None:
    """One that is refused warns."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        conf = tmp_path / "slurm.conf"
        conf.write_text(f"SlurmctldHost=ctl1(127.0.0.1)\nSlurmctldPort={port}\n")
        assert found("controller_name", slurm_conf=str(conf), connect=True).reason == "controller_resolves"
    assert found("controller_name", slurm_conf=str(conf), connect=True).reason == "controller_unreachable"
    assert found("controller_name", slurm_conf=str(conf)).reason == "controller_resolves"


def test_a_malformed_host_is_an_error_of_the_configuration() -> None:
    """And no verdict on the node."""
    for host in ("$(id)", "a b", "", 7):
        said = found("controller_name", hosts=[host])
        assert said.status.value == "unknown"
        assert "nodecheck.options.controller_name.hosts" in said.sentence


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("here", ("pass", "own_name_local")),
        ("far", ("warn", "own_name_foreign")),
        ("none", ("warn", "own_name_unresolved")),
        ("hang", ("warn", "resolver_silent")),
    ],
)
def test_own_name(asked: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: tuple[str, str]) -> None:
    """It must lead to one of this machine's addresses."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    said = found("own_name", timeout_s=0.5)
    assert (said.status.value, said.reason) == expected


def test_which_addresses_are_this_machine_s() -> None:
    """Told by bind(2), for both families."""
    assert host_names.is_local("127.0.0.1")
    for address in ("192.0.2.99", "2001:db8::99", "no address"):
        assert not host_names.is_local(address)


def test_this_machine_has_no_fault() -> None:
    """Nothing above pass or skip on a healthy machine."""
    for name in ("own_name", "resolver"):
        assert found(name).status.value in ("pass", "skip")
    assert found("own_name", Context("n1", root=Path("/none"))).reason == "not_here"


def test_the_resolver_s_files(tmp_path: Path) -> None:
    """There, readable for all, and no link to nothing."""
    context = Context("n1", root=tmp_path)
    assert found("resolver", context).reason == "no_files"
    write(tmp_path, {"/etc/resolv.conf": "search x\nnameserver 10.0.0.1\nnameserver\n", "/etc/hosts": ""})
    said = found("resolver", context)
    assert (said.reason, said.evidence["servers"]) == ("resolver_readable", ["10.0.0.1"])
    conf = tmp_path / "etc/resolv.conf"
    conf.chmod(0o600)
    assert found("resolver", context).reason == "file_closed"
    conf.unlink()
    conf.symlink_to("../run/systemd/resolve/stub-resolv.conf")
    assert found("resolver", context).reason == "file_dangling"
    conf.unlink()
    conf.symlink_to("/run/somewhere/else")  # leads out of a copied tree
    assert found("resolver", context).reason == "resolver_readable"
    with contextlib.suppress(OSError):
        conf.unlink()
    assert found("resolver", context).reason == "resolver_readable"
