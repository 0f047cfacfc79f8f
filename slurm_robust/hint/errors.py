"""Says why there is no hint, or no rule: one exception, with a sentence for people."""


class HintError(Exception):
    """What was asked for cannot be had; the message says why."""
