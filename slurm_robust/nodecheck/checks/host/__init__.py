"""Can a job live on this node: memory, processors, file systems, kernel, clock?

A file for each check, named after the check; the first line of its docstring is its question.
"""
