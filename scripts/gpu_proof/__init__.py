"""Does what was only ever tried with stand-ins hold on a real GPU?

`__main__` chooses the parts and how long each may take (`budget`), and starts each in a process of its own
(`part_process`). A part (`parts/`) yields steps (`outcome`); each is in the part's file before the next one begins.
`page` makes one JSON and one Markdown page of them, anew after every part.
"""
