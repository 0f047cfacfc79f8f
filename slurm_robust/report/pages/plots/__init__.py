"""How is a value of `view` drawn?

`axes` turns values into pixels and chooses ticks, `canvas` collects shapes, `palette` knows colours and patterns. Each
other module draws one kind of plot: a pure function of value and width, so a page has one for phones and one for desks.
"""
