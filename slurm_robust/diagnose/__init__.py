"""What broke, in its own words?

`taxonomy` names what can break and who is to blame for it. `rulebook` reads the rules (`rules/*.yaml`, and the site's)
that recognise it in a line; `findings` applies them to the lines of each rank; `root` finds the one that all others
follow from; `signature` says when two failures are the same. Rules are data: no Python is needed to add one.
`log/` makes a page of output files of any size: what was printed, how often, by which rank, and what is news.
`telling` names the lines that tell most where there is room for few. `node_faults` adds what nodes reported to the
blame, and `resembling` finds the same failure among past incidents.

Pure code: it reads the files that it is given, and nothing else.
"""
