"""Finds out what each rank is doing.

`pyspy` reads what py-spy printed, and `archive` reads and writes the stacks of one node. `process_tree` finds a rank's
training process, `frames` gives the same place the same name on every rank, and `known_names` lists the functions that
show what a stack does. From these, `place` says what a thread is doing, `motion` whether a rank moves between two
captures, and `blocking` what holds a rank and how long the rank must be seen to stand still. For people, `merge` shows
equal stacks once, and `flame_graph` draws the merged stacks.
"""
