"""The house of docs/architecture.md: import direction, no circles, one meaning a name, one clock, small starts."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "slurm_robust"
BASE = frozenset({"core", "config", "wire", "marks.claim", "marks.node_findings", "marks.remedy", "__version__"})
"""The shelves at the bottom: nouns, settings, how strangers' files are read, and the marks that all parts speak of."""
NODES_OWN = frozenset({"marks.blind_marker", "marks.fault_marker", "marks.watch_marker"})
"""What nodes say of themselves in `Extra`."""
VALUES_OF_SLURM = frozenset({"slurm.client", "slurm.values"})
"""Frozen values and arithmetic on node lists: they ask Slurm nothing."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "core": frozenset(),
    "wire": frozenset(),
    "config": frozenset({"core.mode"}),
    "marks": frozenset({"core", "wire"}),
    "progress": frozenset(),
    # It knows nothing of the daemon, nor of Slurm: its process has no right to either.
    "notify": frozenset({"config", "core.text", "core.mode", "wire"}),
    "policy": BASE
    | VALUES_OF_SLURM
    | {"marks.blind_marker", "marks.fault_marker", "marks.lease_marker", "marks.watch_marker"},
    "diagnose": BASE,
    "hint": BASE | {"diagnose"},
    "localize": BASE | {"diagnose"},
    "slurm": BASE,
    "checkpoint": BASE,
    # Where there is no daemon, prolog and health check keep its breaker's bounds themselves.
    # The service that watches a node: its judgement is that of the node checks.
    "nodewatch": BASE | {"marks.fault_marker", "nodecheck"},
    "nodecheck": BASE
    | {
        "marks.blind_marker",
        "marks.drain_permit",
        "marks.fault_marker",
        "slurm",
        "policy.cluster.breaker",
        "marks.watch_marker",
    },
    # What agents send of kernel logs is judged as the service would: by that, and by no catalogue of its own.
    "supervise": BASE
    | {"progress", "slurm", "diagnose", "localize", "policy", "checkpoint", "stoptime"}
    | {"nodewatch.sent_records", "nodecheck.engine.registry"},
    "daemon": BASE
    | {
        "marks.blind_marker",
        "marks.drain_permit",
        "marks.fault_marker",
        "marks.lease_marker",
        "slurm",
        "policy",
        "notify",
    }
    | {"marks.watch_marker"},
    "stoptime": BASE | {"slurm", "nodecheck.nvml.left_behind"},
    # Of the daemon, only how its journal is read.
    "report": BASE
    | {"slurm", "diagnose", "localize", "policy"}
    | {f"daemon.store.{name}" for name in ("attempt_ledger", "drain_history", "journal", "schema")},
    "devcluster": BASE,
    "doctor": BASE | {"slurm.admission"},
    "cli": frozenset({*BASE, "progress", "slurm", "nodecheck", "supervise", "localize", "checkpoint", "policy"})
    | {"diagnose", "hint", "nodewatch", "daemon", "stoptime", "devcluster", "doctor", "report"}
    | {"notify"},
}
"""Part of the package → other parts, or single modules of them, that it may import. Nothing imports `cli`."""

ACTING = frozenset({"subprocess", "socket", "asyncio", "multiprocessing", "sqlite3", "urllib"})
IMPURE = ACTING | {
    "os",
    "signal",
    "io",
    "pathlib",
    "time",
    "datetime",
    "random",
    "secrets",
    "tempfile",
    "shutil",
    "threading",
}
CALENDAR = frozenset({"time.gmtime", "time.strftime"})
"""Arithmetic on a time that is given to them; they read no clock."""
AGENT = (
    *sorted((PACKAGE / "supervise" / "agent").glob("*.py")),
    *(PACKAGE / f"{name}.py" for name in ("progress", "marks/node_findings", "wire/plain_file", "wire/plain_pickle")),
)
HEAVY = ("torch", "numpy", "aiohttp", "rich", "pyslurm", "prometheus_client", "asyncio")

LOADED_BEFORE_SRUN = frozenset(
    {"slurm_robust." + name for name in ("cli", "cli.entry", "cli.run_step", "config", "config.file")}
    | {"slurm_robust." + name for name in ("core", "core.mode", "wire", "wire.own_folder", "wire.whole_file")}
    | {"slurm_robust.supervise"}
    | {"slurm_robust.supervise." + name for name in ("agent", "agent.clock", "agent.procfs", "launch")}
    | {"slurm_robust.supervise." + name for name in ("incident_folder", "job_ref")}
    | {
        f"slurm_robust.supervise.launch.{name}"
        for name in ("attempt_settings", "early_launch", "options", "own_output", "run_place", "srun_command")
    }
    | {f"slurm_robust.supervise.launch.{name}" for name in ("srun_process", "supervisor_lock")}
)
"""Each of these delays every start of a training; a new one has to be worth it."""

MAX_LINES = 400
LONGER = {"progress.py": 535}
"""One file on purpose: it is copied into environments and images without the package. A third of it is its format."""


SAME_NAME: dict[str, str] = {"SealOnSave": "public: each framework's callback, imported from that framework's module"}
"""Class name → why two classes may have it."""

CLOCKS = {
    "supervise/agent/clock.py": "the clock of supervisor, launcher and agents",
    "supervise/clock.py": "the same, and a sleep for asyncio",
    "supervise/warm/hook/srobust_warm_gate.py": "runs in the ranks' own Python, which may have nothing of the package",
    "daemon/context.py": "the daemon's clock",
    "daemon/api/http.py": "another process than the daemon, which gets nothing of its",
}
"""The only files of supervise/ and daemon/ that ask the operating system for the time; all others are given a clock."""
TIME_READS = frozenset(
    {
        *("time.time", "time.monotonic", "time.perf_counter", "time.sleep", "asyncio.sleep"),
        *("datetime.now", "datetime.datetime.now"),
    }
)
HANDED_OVER = frozenset({"get", "items", "keys", "values", "update", "append", "add", "discard", "value", "name"})
"""What every container or enum has: no part's innards."""
MAX_DOTS = 2
MAX_PARAMETERS = 6
MORE_PARAMETERS = {"devcluster.cluster.run": "as subprocess.run, which it stands for"}


def name_of(path: Path) -> str:
    """`supervise.agent.main` for its file; a folder's `__init__` by the folder's name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def module_exists(dotted: str) -> bool:
    """True for a module or folder of the package."""
    path = PACKAGE.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything that a file imports, wherever in it; `from m import x` gives `m.x`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def own(dotted: str) -> str | None:
    """The module of ours that `slurm_robust.…` names, without the package's name; None for others' modules."""
    if dotted != "slurm_robust" and not dotted.startswith("slurm_robust."):
        return None
    inner = dotted.partition(".")[2]
    return inner if not inner or module_exists(inner) or "." not in inner else inner.rpartition(".")[0]


def allowed(part: str, module: str) -> bool:
    """Whether a file of `part` may import `module`."""
    first = module.split(".", maxsplit=1)[0]
    return first in ("", part) or first in MAY_IMPORT[part] or module in MAY_IMPORT[part]


def test_every_part_is_in_the_table() -> None:
    """A new folder says what it may import before it imports anything."""
    parts = {name_of(path).split(".")[0] for path in PACKAGE.rglob("*.py")}
    assert parts == set(MAY_IMPORT)


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_run_one_way(part: str) -> None:
    """Each part imports only what the table allows: supervise and daemon do not know each other, nothing knows cli."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {part} may not import {module}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if name_of(path).split(".")[0] == part
        for line, dotted in imports(path)
        if (module := own(dotted)) is not None and not allowed(part, module)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_itself_runs_one_way() -> None:
    """Whoever may import whom: no circle among the parts, whatever the code does today."""
    left = {part: {m.split(".")[0] for m in may} & set(MAY_IMPORT) - {part} for part, may in MAY_IMPORT.items()}
    # policy takes values of slurm, which takes nothing back from it.
    while left:
        free = [part for part, may in left.items() if not may & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for part in free:
            del left[part]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("policy", IMPURE),
        ("diagnose", ACTING | {"time", "datetime", "random", "secrets"}),
        ("localize", ACTING | {"time", "datetime", "random", "secrets"}),
        ("report/figures", IMPURE),
        ("report/characterise", IMPURE),
        ("report/lemons.py", IMPURE),
        ("report/narrow.py", IMPURE),
        ("report/pages", IMPURE),
    ],
)
def test_what_decides_touches_nothing(folder: str, forbidden: frozenset[str]) -> None:
    """policy: no I/O, no clock, no randomness. localize and diagnose read the files given to them, and no more."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {dotted}"
        for path in sorted((PACKAGE / folder).rglob("*.py")) or [PACKAGE / folder]
        for line, dotted in imports(path)
        if dotted.split(".")[0] in forbidden and dotted not in CALENDAR
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module",
    [f"notify/{name}.py" for name in ("alert", "planner", "wording")]
    + [f"daemon/{name}.py" for name in ("log_alerts", "counted", "api/metrics")],
)
def test_what_is_told_and_counted_is_decided_without_a_clock(module: str) -> None:
    """Whom to tell what and when, in which words, and what a number is: arithmetic on what is given to them."""
    wrong = [d for _, d in imports(PACKAGE / module) if d.split(".")[0] in IMPURE and d not in CALENDAR]
    assert wrong == []


def test_the_daemon_loads_no_client_for_messages() -> None:
    """It feeds a process; what reads secrets and opens connections is loaded there alone."""
    modules = loaded_by("import slurm_robust.daemon.start")
    assert {m for m in modules if m.split(".")[0] in ("aiohttp", "prometheus_client")} == set()
    assert "slurm_robust.notify.planner" in modules
    assert modules & {"slurm_robust.notify.delivery", "slurm_robust.notify.outlet"} == set()


def test_only_the_client_of_a_hint_opens_a_connection() -> None:
    """What is masked, asked, voted on and proposed is decided without sockets; the log is read elsewhere."""
    opening = ACTING | {"http", "ssl"}
    found = {
        path.name
        for path in (PACKAGE / "hint").glob("*.py")
        for _, dotted in imports(path)
        if dotted.split(".")[0] in opening and not dotted.startswith("urllib.parse.")
    }
    assert found == {"client.py"}


def test_the_values_of_slurm_ask_slurm_nothing() -> None:
    """What policy takes from slurm/ imports nothing that could act."""
    for module in sorted(VALUES_OF_SLURM):
        path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        names = {dotted.split(".")[0] for _, dotted in imports(path)}
        assert not names & ACTING, f"{module}: {sorted(names & ACTING)}"
        assert {own(d) for _, d in imports(path)} <= {None, "core.model", "slurm.errors", *VALUES_OF_SLURM}, module


@pytest.mark.parametrize("path", AGENT, ids=name_of)
def test_agent_and_progress_are_the_standard_library_and_each_other(path: Path) -> None:
    """They run on every node, and inside other people's environments: Python 3.8 and nothing installed."""
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    names = {name_of(p) for p in AGENT}
    for line, dotted in imports(path):
        module = own(dotted)
        if module is None:
            assert dotted.split(".")[0] in sys.stdlib_module_names, f"{path.name}:{line}: {dotted}"
        else:
            assert module in names, f"{path.name}:{line}: {dotted}"


@pytest.mark.parametrize(
    "folder", [PACKAGE, *(PACKAGE / name for name in ("marks", "wire", "supervise", "supervise/agent"))]
)
def test_the_folders_above_the_agent_load_nothing(folder: Path) -> None:
    """Importing the agent runs these files too."""
    assert [d for _, d in imports(folder / "__init__.py") if d != "__future__.annotations"] == []


def loaded_by(code: str, *, flags: tuple[str, ...] = (), **env: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded when `code` has ended; its exit code is its own."""
    tell = "sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
    program = f"import sys, json, atexit\natexit.register(lambda: {tell})\n{code}"
    values = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    argv = [sys.executable, *flags, "-c", program]
    done = subprocess.run(argv, input="", env=values, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def heavy(modules: set[str]) -> set[str]:
    """Those of `modules` that cost more than a prolog or an agent may pay."""
    return {m for m in modules if m.split(".")[0] in HEAVY}


@pytest.mark.parametrize(
    "start",
    [
        "from slurm_robust.nodecheck.stages.command import main\nmain(['--stage', 'full', '--json'])",
        "from slurm_robust.cli.main import cli\ncli(['check', '--stage', 'full', '--json'], standalone_mode=False)",
    ],
    ids=["prolog", "srobust"],
)
def test_a_check_loads_nothing_heavy(start: str, tmp_path: Path) -> None:
    """A whole `srobust check` on this machine, the prolog's way and a person's."""
    config = tmp_path / "robust.yaml"
    config.write_text(f"nodecheck: {{cache_dir: {tmp_path}, kmsg: {tmp_path}/kmsg, disable: [matmul, collective]}}\n")
    modules = loaded_by(start, SROBUST_CONFIG=str(config))
    assert "slurm_robust.nodecheck.engine.runner" in modules
    assert heavy(modules) == set()
    assert "slurm_robust.slurm.commands" not in modules, "a fit node never pays for Slurm"


@pytest.mark.parametrize("site", [None, "mode: act\n"], ids=["no file", "a file"])
def test_srun_starts_before_anything_heavy_is_loaded(site: str | None, tmp_path: Path) -> None:
    """`srobust run`, up to the moment at which it forks srun: what is loaded until then, the training waits for."""
    start = f"""
import os, slurm_robust.config.file
from pathlib import Path
from slurm_robust.supervise.launch import srun_process
slurm_robust.config.file.DEFAULT_PATH = Path({str(tmp_path / "robust.yaml")!r})
srun_process.start = lambda *_: os.write(1, b"forks\\n") and sys.exit(0)
sys.argv = ["srobust", "run", "--robust-folder={tmp_path}", "-n2", "python", "train.py"]
from slurm_robust.cli.entry import main
main()
"""
    if site is not None:
        (tmp_path / "robust.yaml").write_text(site)
    modules = loaded_by(start, SLURM_JOB_ID="5", SLURM_CLUSTER_NAME=f"test-{tmp_path.name}-{os.getpid()}")
    assert heavy(modules) == set()
    ours = {m for m in modules if m.startswith("slurm_robust.")}
    sections = ("http", "supervise", "notify", "repair", "report")
    read = {f"slurm_robust.config.{name}" for name in ("site", *sections, "yaml_lines")}
    assert ours - read == LOADED_BEFORE_SRUN
    late = {"click", "dataclasses", "inspect", "queue", "regex", "psutil", "ClusterShell", "slurm_robust.core.model"}
    if site is None:
        assert modules & (late | {"yaml", "msgspec"}) == set()
    else:
        assert "msgspec" in modules
        assert modules & (late - {"inspect"}) == set(), "msgspec and yaml load some of the standard library"


def test_an_agent_loads_the_standard_library_only() -> None:
    """A whole life of an agent, as the watch step starts it: it ends with its input."""
    start = f"sys.path.insert(0, {str(ROOT)!r})\nfrom slurm_robust.supervise.agent.main import main\n"
    modules = loaded_by(f"{start}main(['1', '', '0.5', 'py-spy'])", flags=("-S", "-s", "-E"), SLURMD_NODENAME="n1")
    assert heavy(modules) == set()
    others = {m for m in modules if m.split(".")[0] not in {*sys.stdlib_module_names, "slurm_robust", "__main__"}}
    assert others == set()


def test_a_supervisor_loads_the_judgement_of_records_when_one_comes() -> None:
    """Few jobs ever need the node checks' catalogue."""
    modules = loaded_by("import slurm_robust.supervise.supervisor")
    assert "slurm_robust.supervise.reported.kernel_records" in modules
    assert {m for m in modules if m.startswith(("slurm_robust.nodewatch", "slurm_robust.nodecheck"))} == set()


def everything_imported(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere: at the top, in functions, and for type checkers alone."""
    return {module for _, dotted in imports(path) if (module := own(dotted)) and module_exists(module)}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or by a way round (Tarjan's components of two and more)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph.get(name, set()):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(members) > 1:
                found.append(sorted(members))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_a_circle_is_found() -> None:
    """The test below would see one: of two modules, and of three."""
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [["a", "b"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]


def test_no_module_imports_itself_by_a_way_round() -> None:
    """Also not in a function or for type checkers: two modules that need each other are one, or a third is missing."""
    graph = {name_of(p): everything_imported(p) - {name_of(p)} for p in PACKAGE.rglob("*.py")}
    assert circles(graph) == []


def test_one_class_name_has_one_meaning() -> None:
    """Whoever reads `Layout` or `Record` need not ask which."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in SAME_NAME}
    assert twice == {}
    assert all(len(places.get(name, [])) > 1 for name in SAME_NAME), "an exception that is not needed any more"


def dotted_name(node: ast.Attribute) -> list[str]:
    """`a.b.c` as its words; empty if it begins with something else than a name (a call, say)."""
    words: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    return [inner.id, *reversed(words)] if isinstance(inner, ast.Name) else []


def attributes(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each whole `a.b.c` in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner and (words := dotted_name(node)):
            yield node.lineno, words


@pytest.mark.parametrize("part", ["supervise", "daemon"])
def test_time_comes_from_the_clock(part: str) -> None:
    """Parts take the session's clock (the daemon's, the agent's), so that tests can move it by hand."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {'.'.join(words)}"
        for path in sorted((PACKAGE / part).rglob("*.py"))
        if str(path.relative_to(PACKAGE)) not in CLOCKS
        for line, words in attributes(path)
        if ".".join(words) in TIME_READS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", ["supervise", "daemon"])
def test_no_part_reaches_through_another(part: str) -> None:
    """At most two dots: what lies deeper is asked of the part that owns it. Configuration is a plain value."""
    wrong = []
    for path in sorted((PACKAGE / part).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        imported = {
            (a.asname or a.name).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
        }
        imported |= {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        for line, words in attributes(path):
            chain = words[1:] if words[0] in ("self", "cls") else words
            chain = chain[:-1] if chain[-1] in HANDED_OVER else chain
            if words[0] not in imported and "config" not in chain and len(chain) - 1 > MAX_DOTS:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {'.'.join(words)}")
    assert not wrong, "\n".join(wrong)


def test_many_parameters_are_an_options_object() -> None:
    """More than six parameters are a value of their own. Click commands have one a command-line option."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if any("command" in ast.dump(d) or "option" in ast.dump(d) for d in node.decorator_list):
                continue
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            known = f"{name_of(path)}.{node.name}" in MORE_PARAMETERS
            if len([n for n in names if n not in ("self", "cls")]) > MAX_PARAMETERS and not known:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_says_what_is_in_it() -> None:
    """The docstring of each package: its question, and the order in which data passes."""
    texts = {
        str(p.parent.relative_to(ROOT)): ast.get_docstring(ast.parse(p.read_text("utf-8"))) or ""
        for p in PACKAGE.rglob("__init__.py")
    }
    assert [folder for folder, text in texts.items() if len(text.split()) < 12] == []


def test_help_loads_no_subcommand() -> None:
    """`srobust --help` shows a table; what stands behind its lines is loaded when it is typed."""
    modules = loaded_by("from slurm_robust.cli.main import cli\ncli(['--help'], standalone_mode=False)")
    ours = {m for m in modules if m.startswith("slurm_robust")}
    assert ours == {"slurm_robust", "slurm_robust.cli", "slurm_robust.cli.main"}


def test_files_can_be_read_in_one_sitting() -> None:
    """No file of the package has more than 400 lines, but for one that says why."""
    sizes = {str(p.relative_to(PACKAGE)): len(p.read_text("utf-8").splitlines()) for p in PACKAGE.rglob("*.py")}
    assert {name: n for name, n in sizes.items() if n > LONGER.get(name, MAX_LINES)} == {}
    assert all(sizes[name] > MAX_LINES for name in LONGER), "an exception that is not needed any more"


def test_test_files_have_names_of_their_own() -> None:
    """Pytest imports them by that name: two that are alike cannot be collected together, though each can alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_nothing_that_a_program_left_is_part_of_the_project() -> None:
    """What a run of something wrote into the working tree, a log say, was committed once without being looked at."""
    listed = subprocess.run(["git", "ls-files", "*.log", "*.out"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout == ""


def room_of(path: Path) -> str:
    """The room that a file stands in: its folder; a module beside sub-folders is a room of its own."""
    has_rooms = any((folder / "__init__.py").exists() for folder in path.parent.iterdir() if folder.is_dir())
    return name_of(path) if has_rooms else path.parent.relative_to(PACKAGE).as_posix()


def test_no_room_imports_itself_by_a_way_round() -> None:
    """Rooms are read one after the other: of two that need each other, neither can be understood alone."""
    rooms = {name_of(path): room_of(path) for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        others = {rooms[module] for module in everything_imported(path) if module in rooms}
        graph.setdefault(room_of(path), set()).update(others - {room_of(path)})
    assert circles(graph) == []


def test_no_module_looks_like_a_test() -> None:
    """`test_x.py` and `x_test.py` are names of tests; the command `srobust test` is the one exception."""
    looks = [str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if re.search(r"(^|_)test(_|$)", p.stem)]
    assert looks == ["cli/commands/test.py"]


NAMED_BY_WHAT_IS_TYPED = {
    "cli/commands": "a file for each subcommand, named after it: `srobust --help` lists them",
    "nodecheck/checks/gpu": "a file for each check, named after it: `srobust check --list` explains them",
    "nodecheck/checks/host": "the same",
    "nodecheck/checks/network": "the same",
    "nodecheck/checks/torch": "the same, and what several of these checks share",
}
"""Folder → why its docstring need not name its files."""


def named_in(docstring: str) -> set[str]:
    """Return the names that stand in backticks, without their folder and ending: `x` for `x`, `y/x.py` and `y.x`."""
    quoted = re.findall(r"`([\w./]+)`", docstring)
    return {re.split(r"[./]", text.rstrip("/").removesuffix(".py"))[-1] for text in quoted}


@pytest.mark.parametrize("init", sorted(PACKAGE.rglob("__init__.py")), ids=name_of)
def test_a_folder_names_all_that_is_in_it(init: Path) -> None:
    """Whoever reads folders and docstrings alone finds each module and sub-folder, in backticks, with what it does."""
    folder = init.parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    if folder.relative_to(PACKAGE).as_posix() in NAMED_BY_WHAT_IS_TYPED:
        modules = set()
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert (modules | rooms) - named_in(ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "") == set()
