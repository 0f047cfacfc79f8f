"""Limits how often something may happen, so that no text from outside fills disks or logs. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque


class RateLimit:
    """Allows `count` of something in `window_s` for each key, in bounded memory."""

    def __init__(self, count: int, window_s: float, keys: int = 1024) -> None:
        self.count, self.window_s, self.keys = count, window_s, keys
        self._used: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, key: str, now_s: float) -> bool:
        """Return whether one more is within the limit; it is then counted."""
        used = self._used.setdefault(key, deque())
        self._used.move_to_end(key)
        while len(self._used) > self.keys:
            self._used.popitem(last=False)
        while used and used[0] <= now_s - self.window_s:
            used.popleft()
        if len(used) >= self.count:
            return False
        used.append(now_s)
        return True

    def give_back(self, key: str) -> None:
        """Take back the last use: it does not count, since it came to nothing."""
        self._used[key].pop()
