"""Whatever the documents have an admin install can be removed by them: no file is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_robust.config.site import Config

DOCS = Path(__file__).resolve().parents[1] / "docs"
PATH = re.compile(r"(?<![\w./~])(/(?:opt|usr|etc|run|var)/[\w./@+-]*\w/?)")


def section(page: str, title: str) -> str:
    """What stands below a heading, to the next one of its level."""
    return (DOCS / page).read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def commands(text: str) -> str:
    """Its code blocks, without what stands behind a #."""
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    return "\n".join(row.split(" #", 1)[0] for block in blocks for row in block.splitlines())


def test_remove_it_names_what_install_leaves() -> None:
    """Each path of the installation's commands, and each folder that is filled in use, or one above it."""
    config, removal = Config(), section("operations.md", "Remove it")
    named = set(PATH.findall(removal))
    installed = set(PATH.findall(commands(section("operations.md", "Install"))))
    assert {"/opt/slurm_robust", "/etc/slurm_robust/robust.yaml"} <= installed
    left = {"/usr/bin/srobust", "/usr/bin/srobustd", config.daemon.state_dir, config.nodecheck.cache_dir}
    left |= {f"/etc/systemd/system/{unit.name}" for unit in (DOCS / "systemd").iterdir()}
    # Folders of the system's, into which files are put that are named in full above.
    left |= installed - {"/usr/bin/", "/etc/systemd/system/"}
    assert {path for path in left if not any(path == n or path.startswith(f"{n}/") for n in named)} == set()


def test_remove_it_says_what_to_wait_for() -> None:
    """Files go last: after the jobs that use them, and after Slurm has let go of prolog, epilog and plugin."""
    removal = section("operations.md", "Remove it")
    order = ["mode: observe", "squeue ", "uninstall", "scontrol show config", "systemctl disable --now", "rm -rf"]
    places = [removal.index(words) for words in order]
    assert places == sorted(places)


def test_remove_it_also_takes_back_what_other_pages_let_one_make() -> None:
    """A unit's drop-in folder, and the daemon's own account, on the machine and in Slurm's accounting."""
    pages, removal = "".join(page.read_text() for page in DOCS.glob("*.md")), section("operations.md", "Remove it")
    edited, users = (set(re.findall(words, pages)) for words in (r"systemctl edit (\w+)", r"useradd .* (\w+)\n"))
    added = set(re.findall(r"sacctmgr -i add (user|account) (\w+)", pages))
    assert {"srobustd"} <= edited
    assert users
    left = [f"/etc/systemd/system/{unit}.service.d" for unit in edited] + [f"userdel {name}" for name in users]
    left += [f"sacctmgr -i delete {kind} {name}" for kind, name in added]
    assert [what for what in left if what not in removal] == []
