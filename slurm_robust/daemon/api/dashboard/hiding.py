"""Takes the names of users and jobs out of a snapshot for all clients of the HTTP side. Pure.

The fields become `hidden`, and so does each name that is a word of a sentence. A job's name that may be a usual word
(`nan`, `rank`) is hidden only if it stands as a name: quoted, behind `job`, in a path. Otherwise the sentence would not
be true any more, and whoever knows such sentences could guess the name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

HIDDEN = "hidden"
NAMES_MAX = 20_000
"""The most names that are remembered: the newest hundred incidents and all jobs have far fewer."""
PHRASES_MAX = 500
"""The most remembered names of several words: each is looked for by itself."""
FOLDERS = frozenset({"report", "folder"})
"""Paths of a user's, which may also be named for the job."""
SENTENCES = frozenset({"reason", "why", "word", "evidence", "doing", "error", "still", "troubles"})
"""Keys whose texts are sentences of people, jobs or the daemon; all other texts are names and values of our own."""
_WORD = re.compile(r"[\w-]+(?:[.@+][\w-]+)*")
_ORDINARY = re.compile(r"[A-Za-z]+|\d+")
"""A word of letters alone, or of digits alone."""
_CALLED = re.compile(r"(?:\bjobs?|\bcalled|\bnamed|name)[:=]?\s?$", re.IGNORECASE)
_IN_A_PATH = re.compile(r"(?<![^\s\"'`=:(])/(?!(?:dev|proc|sys)/)(?:[^\s\"'`/]+/)+$")
_BEHIND_JOB = re.compile(
    "that|is|has|in|was|may|of|runs|are|on|and|with|have|for|does|would|only|ended|can|waits|or|if|still|not|to|had|"
    "must|starts|left|leaves|goes|ends|should|needs|will|did|by|were"
)
"""The words that follow `job` in our own sentences."""


EMPTY: dict[str, Any] = dict.fromkeys(
    ("nodes", "standby", "jobs", "waiting", "incidents", "lost_gres", "blind_nodes", "troubles", "notify"), ()
)
"""The keys that name nodes, hidden if strangers may not see nodes."""
NODES = frozenset({"nodes", "reservations", "partitions", "unknown", "all"})


def of_strangers(private: Collection[str]) -> frozenset[str]:
    """Return what to hide from clients of unknown identity, by slurm.conf's `PrivateData`."""
    if frozenset(private) & {"jobs", *NODES}:
        return frozenset({"jobs", "users"})
    return frozenset({"users"} if private else ())


def without_nodes(snapshot: Mapping[str, Any], private: Collection[str]) -> dict[str, Any]:
    """Return the snapshot without everything that names a node, if these are private."""
    if not NODES & frozenset(private):
        return dict(snapshot)
    is_open = bool(dict(snapshot.get("breaker") or {}).get("open"))
    kept = {key: list(EMPTY[key]) if key in EMPTY else value for key, value in snapshot.items()}
    return {**kept, "breaker": {"open": is_open, "why": ""}}


class Hiding:
    """Hides the names of `jobs` or `users`, as the site chose.

    It remembers names: a sentence may name a user whose job has ended since.
    """

    def __init__(self, what: Collection[str]) -> None:
        self._chosen = frozenset(what)
        self.also(())
        self._words: dict[str, bool] = {}
        self._phrases: dict[str, bool] = {}
        """Name → whether it is hidden wherever it stands."""

    def __bool__(self) -> bool:
        return self.jobs or self.users

    def hidden(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return the snapshot without the hidden names."""
        nodes = {node.get("name") for node in snapshot.get("nodes", ())}
        for name, is_users in _names(snapshot, jobs=self.jobs, users=self.users):
            known, most = (self._words, NAMES_MAX) if _WORD.fullmatch(name) else (self._phrases, PHRASES_MAX)
            everywhere = is_users or not _is_ordinary(name, nodes)
            known[name] = known.pop(name, False) or everywhere
            if len(known) > most:
                del known[next(iter(known))]
        shown = {key: self._shown(value, key) for key, value in snapshot.items()}
        return {**shown, "hidden": [what for what in ("jobs", "users") if getattr(self, what)]}

    def also(self, what: Collection[str]) -> None:
        """Hide `what` in addition to the site's choice, until the next call."""
        hidden = self._chosen.union(what)
        self.jobs, self.users = "jobs" in hidden, "users" in hidden

    def _shown(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return self._row(value)
        if isinstance(value, list):
            return [self._shown(item, key) for item in value]
        if isinstance(value, str) and key in SENTENCES:
            return self._sentence(value)
        return value

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        if "node_state" in row and not any(row.get(key) for key in ("reason", "word", "repair", "strikes_by_user")):
            return row  # most of ten thousand nodes
        shown = {key: self._shown(value, key) for key, value in row.items()}
        if self.jobs and "name" in row and "job" in row and "node_state" not in row:
            shown["name"] = HIDDEN
        if self.users and "user" in row:
            shown["user"] = HIDDEN
        if self.users and row.get("strikes_by_user"):
            shown["strikes_by_user"] = {HIDDEN: sum(row["strikes_by_user"].values())}
        shown.update(dict.fromkeys(FOLDERS & row.keys(), ""))
        return shown

    def _sentence(self, text: str) -> str:
        for phrase, everywhere in self._phrases.items():
            if phrase in text:
                text = re.sub(re.escape(phrase), partial(_hidden, everywhere=everywhere), text)
        return _WORD.sub(lambda word: _hidden(word, everywhere=self._words.get(word[0])), text)


def _is_ordinary(name: str, nodes: Collection[str | None]) -> bool:
    """Return whether a sentence may have these words and mean no job: one or two ordinary words, or names of nodes."""
    words = name.split(" ")
    return len(words) <= 2 and all(word in nodes or _ORDINARY.fullmatch(word) for word in words)


def _hidden(found: re.Match[str], *, everywhere: bool | None) -> str:
    """Return the text for these words of a sentence; `everywhere` is None if the words are not a name."""
    if everywhere is None or not (everywhere or _stands_as_name(found)):
        return found[0]
    return HIDDEN


def _stands_as_name(found: re.Match[str]) -> bool:
    """Return whether words that may be ordinary ones are a job's name here."""
    word, before, after = found[0], found.string[: found.start()], found.string[found.end() :]
    if before[-1:] in ("'", '"', "`") and after[:1] == before[-1:]:
        return True
    first = word.partition(" ")[0]  # of `12 of`, which follows `job` in sentences of our own
    called = _CALLED.search(before) is not None and not (_BEHIND_JOB.fullmatch(first) or first.isdigit())
    return called or _IN_A_PATH.search(before) is not None


def _names(value: Any, *, jobs: bool, users: bool) -> Iterator[tuple[str, bool]]:
    """Yield the names of jobs and users in all rows of a snapshot, and whether it is a user's."""
    if isinstance(value, dict):
        if users and value.get("user"):
            yield str(value["user"]), True
        if users and isinstance(value.get("strikes_by_user"), dict):
            yield from ((str(user), True) for user in value["strikes_by_user"])
        if jobs and value.get("name") and "job" in value and "node_state" not in value:
            yield str(value["name"]), False
        if "node_state" not in value:
            for item in value.values():
                yield from _names(item, jobs=jobs, users=users)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item, jobs=jobs, users=users)
