"""What does the daemon show?

`state_snapshot` builds one JSON document, `needs` says what in it needs a person, `state_publisher` writes it, and
`http` serves it read-only, to tools and, by `dashboard`, to people. `report_pages` has the report's pages made.
"""
