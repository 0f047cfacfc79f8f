"""How is a value of `view` drawn?

`drawn` draws any plot, once for phones and once for desks, with its legend. `axes` turns values into pixels and
chooses ticks, `canvas` collects shapes, and `palette` has colours and patterns. One module for each kind of plot, a
pure function of value and width:

* `timeline` draws trainings over time, `shares` where their time went, `parts` bars of seconds or failures, and
  `standby` the pools.
* `intervals` draws measured values with their uncertainty.
* `waterfall` draws the stages of an incident, `rank_cells` what each rank did, and `flame` the merged stacks.
"""
