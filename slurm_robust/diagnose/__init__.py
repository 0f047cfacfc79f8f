"""Finds out from a job's output what broke.

`taxonomy` names what can break and who is to blame for it. Rules (`rules/*.yaml`, and the site's) recognise a failure
in a line: a new rule needs YAML, but no Python.

* Reading: `large_files` reads logs of any size in one pass. `lines` removes colours and labels from a line, and
  `raised` follows Python's tracebacks through lines of several ranks. `log` makes a page of output files: what was
  printed, how often, by which rank, and what is new in it.
* Matching: `rulebook` reads the rules, `hints` finds the words that a line must have for a pattern to match, so that
  most lines are not searched, and `findings` applies the rules to the lines of each rank. `attempts` tells by our own
  lines, and Slurm's of a requeue, to which attempt of the job a line belongs.
* Judging: `root` finds the error that all others follow from. `reported_gpu_faults` blames the node for a CUDA error
  if the node reported a fault of its GPU in the same minute. `signature` says when two failures are the same, and
  `resembling` finds similar failures among past incidents.
* Showing: `telling` chooses the lines that tell most, and `explain` writes the categories into docs/diagnosis.md.

Pure code: it only reads the files that it is given.
"""
