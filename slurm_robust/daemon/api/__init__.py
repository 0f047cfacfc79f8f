"""What does the daemon show?

`state_snapshot` builds one JSON document, with a row for each node from `node_rows`; `state_lines` encodes it, and
`needs` says which of its contents need a person. `state_publisher` writes it to a file and sends it to the `http`
process, which only reads. That process serves tools (`metrics`) and people (`dashboard`), and `connections` limits what
a client may take from it. `report_pages` runs `srobust report` once an hour, for the report's pages.
"""
