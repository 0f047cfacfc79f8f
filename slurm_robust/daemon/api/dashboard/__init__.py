"""What does a person see in a browser?

`tree` is a piece of a page as a value, which becomes HTML for the first load and JSON for changes. `home` and
`incident` make the boards of the pages from a snapshot, with `nodes`, `stages` and `pieces`; `page` is the document
around a board. `live` sends the differences of two boards to those who watch. `access` decides who may, `hiding` what
nobody may, and `web` answers the requests. All but `live` and `web` are pure.
"""
