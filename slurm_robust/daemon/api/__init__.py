"""What does the daemon show?

`state_snapshot` builds one JSON document (`node_rows`, `state_lines`); `needs` says what in it needs a person.
`state_publisher` writes it, and `http` serves it read-only: to tools (`metrics`), and by `dashboard` to people.
`report_pages` has the report's pages made.
"""
