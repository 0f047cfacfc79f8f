"""What is each rank doing?

py-spy's output (`pyspy`, or an `archive` of a node) becomes a process tree (`process_tree`), comparable frames
(`frames`, `known_names`), a place (`place`) and, with an earlier capture, a motion (`motion`). `merge` folds equal
stacks for people.
"""
