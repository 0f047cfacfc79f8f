"""Judges which machine is slow.

`judge` takes step timings, live ones or from a file that `timings_file` has read, and returns a `Verdict`; it also
combines that verdict with the verdict on a hang. `rounds` judges repeated captures of stacks instead. The steps of
`judge`, in their order:

* `case` chooses the timings that can be judged, and `peers` says which ranks may be compared with each other.
* `effects` computes how much slower each rank is than its peers, with `robust_statistics`, and `outliers` finds the
  ranks and nodes that stand out.
* `confounders` finds reasons other than a slow machine, and `verdict` makes one verdict of all results.
* `unnamed` recognises a verdict that finds the job slow and does not name a machine. `wording` writes the reasons.

Pure. Only what `judge` loads when it is called imports numpy.
"""
