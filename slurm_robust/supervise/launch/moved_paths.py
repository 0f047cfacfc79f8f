"""Lets the ranks run from a snapshot: changes working directory, PYTHONPATH and the command. Starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.supervise.launch.srun_command import SrunCommand

_PATH_ENDS = r"\s'\"`;:,|&()<>$=*?\[\]{}"
_CONTAINERS = re.compile(r"(?:^|[\s/])(?:apptainer|singularity|docker|podman|enroot|shifter|sarus)(?=\s|$)")
_OURS = "PYTHONPATH,SROBUST_CODE_DIR,SROBUST_CODE_VERSION"


@dataclass(frozen=True)
class MovedPaths:
    """The version in force, and the folder from which it was taken.

    Attributes:
        source: The absolute paths of the folder: its real path first, then the path that the user gave.
        snapshot: The folder of the version.
        work_dir: The folder in which srun would start the ranks otherwise.
    """

    number: int
    source: tuple[str, ...]
    snapshot: Path
    work_dir: str

    def holds(self, inside: str) -> bool:
        """Return whether the version itself has this path; targets of links that lead elsewhere do not count."""
        root = os.path.realpath(self.snapshot)
        found = os.path.realpath(os.path.join(root, inside))  # noqa: PTH118 (an empty part is the root)
        return (found == root or found.startswith(f"{root}/")) and os.path.exists(found)  # noqa: PTH110

    def inside(self, path: str) -> str | None:
        """Return the path within the folder, empty for the folder itself; None for a path elsewhere."""
        path = os.path.normpath(path)
        for source in self.source:
            if path == source or path.startswith(f"{source}/"):
                return path[len(source) + 1 :]
        return None

    def moved(self, path: str) -> str:
        """Return the absolute path in the version; the path itself if the version does not have it."""
        inside = self.inside(path)
        if inside is None or not self.holds(inside):
            return path
        return f"{self.snapshot}/{inside}" if inside else str(self.snapshot)

    # -- the command --------------------------------------------------------------------------------------------------

    def command(self, command: SrunCommand) -> SrunCommand:
        """Return the command as it runs from the version: paths moved, and options added after the user's own."""
        base = self.base(command)
        options, values = list(command.options), dict(command.values)
        if (place := self.moved(base)) != base:
            options.append(f"--chdir={place}")
            values["chdir"] = place
        export = values.get("export", "ALL")
        if export.upper() not in ("NONE", "NIL", "ALL"):
            values["export"] = f"{export},{_OURS}"
            options.append(f"--export={values['export']}")
        if place == base:
            words = tuple(self._word(word, base) for word in command.command)
        else:
            words = tuple(self._word(self._leading_out(word, base)) for word in command.command)
        return command._replace(options=tuple(options), values=values, command=words)

    def why_not_imported(self, command: SrunCommand) -> str:
        """Return why the ranks would import their modules from the folder itself; empty if they would not.

        Python looks beside the program, or in the working directory, before it looks in the folders of PYTHONPATH.
        """
        base, source = self.base(command), Path(self.source[0])
        if self.inside(base) is not None:
            return ""
        following = [command.command[i + 1] for i, word in enumerate(command.command[:-1]) if word == "-m"]
        module = next((name for name in following if Path(base, name.partition(".")[0]) == source), "")
        if not module and not (source / "__init__.py").exists():
            return ""
        what = f"module {module}" if module else "package"
        return f"the ranks would import the {what} from {source} itself: give --robust-code={source.parent}"

    def base(self, command: SrunCommand) -> str:
        """Return the folder in which srun would start the ranks."""
        chosen = command.values.get("chdir") or command.values.get("D") or ""
        return os.path.normpath(os.path.join(self.work_dir, chosen))  # noqa: PTH118 (normpath follows no link)

    def _leading_out(self, word: str, base: str) -> str:
        """Return the word, made absolute if it leads out of the folder by `..`: the working directory is moved."""
        name, sep, value = word.partition("=")
        for start, path in (("", word), (name + sep, value)):
            if path == ".." or path.startswith(("../", "./../")):
                there = os.path.normpath(os.path.join(base, path))  # noqa: PTH118
                return word if self.inside(there) is not None else start + there
        return word

    def _word(self, word: str, base: str = "") -> str:
        """Return one word of the command, moved; relative paths begin at `base`, if the working directory stays."""
        name, sep, value = word.partition("=")
        for start, path in (("", word), (name + sep, value)):
            if path.startswith("/") and (moved := self.moved(path)) != path:
                return start + moved
        if base and not word.startswith("-"):
            inside = self.inside(os.path.join(base, word))  # noqa: PTH118
            if inside and self.holds(inside) and (self.snapshot / inside).is_file():
                return f"{self.snapshot}/{inside}"
        for source in self.source:
            pattern = rf"(?<![\w./-]){re.escape(source)}(?![\w.-])(?:/[^{_PATH_ENDS}]*)?"
            word = re.sub(pattern, lambda match: self.moved(match[0]), word)
        return word

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return variables for the ranks, so that modules are imported from the version first.

        A relative path of a checkpoint is made absolute, since the working directory may be moved.
        """
        first = [str(self.snapshot)]
        if (self.snapshot / "src").is_dir():
            first.append(str(self.snapshot / "src"))
        resume = base.get("SROBUST_RESUME_PATH", "")
        found = {"SROBUST_RESUME_PATH": os.path.join(self.work_dir, resume)} if resume else {}  # noqa: PTH118
        given = [self.moved(path) for path in base.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {
            **found,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys((*first, *given))),
            "SROBUST_CODE_DIR": str(self.snapshot),
            "SROBUST_CODE_VERSION": str(self.number),
        }

    def text(self, command: SrunCommand) -> str:
        """Return words that say which parts of a command are moved, and which are not."""
        changed = self.command(command)
        pairs = [(old, new) for old, new in zip(command.command, changed.command, strict=True) if old != new]
        words = "; ".join(f"{old!r} becomes {new!r}" for old, new in pairs[:8])
        base = self.base(command)
        place = self.moved(base)
        there = f"working directory {place}" if place != base else f"the working directory stays {base}"
        return f"{there}; PYTHONPATH begins with it; in the command {words or 'no word is changed'}"


def why_not_movable(command: SrunCommand) -> str:
    """Return why this command cannot run from a snapshot; empty if it can."""
    words = " ".join(command.command[:1] if "-c" not in command.command else command.command)
    if any(option.startswith("--container") for option in command.options) or _CONTAINERS.search(words):
        return "the command runs in a container, in which the snapshot's path means nothing"
    if "multi-prog" in command.values:
        return "--multi-prog takes the programs from a file, which is not rewritten"
    return ""
