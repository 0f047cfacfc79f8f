from dataclasses import dataclass
from typing import Any


@dataclass
class Facts:
    config: Any
    job: Any
    fleet: Any
    command: Any
    can_relaunch: bool
    evicted: Any
    silent_nodes: Any
    restarts_in_place: int
    failures: Any
    fruitless: int
    overdue: bool
    exit_code: Any


def describe(v, f):
    return {"verdict": v, "facts": f}
