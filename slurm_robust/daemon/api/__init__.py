"""What does the daemon show?

`state_snapshot` builds one JSON document, with each training's `effective_time`; `state_publisher` writes it,
and `http` serves it read-only.
"""
