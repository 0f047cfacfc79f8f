"""What does the daemon show?

`state_snapshot` builds one JSON document, `state_publisher` writes it, and `http` serves it read-only.
"""
