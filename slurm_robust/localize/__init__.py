"""Judges who is at fault for an incident.

`judge` asks the `votes`, the strongest first, and returns the `Verdict`; `grades` says how sure each kind of evidence
is, and `verdict_text` prints the verdict.

* What is judged: `evidence` has all that is known of one incident, as values. `evidence_folder` and `circumstances`
  read the evidence of a saved incident, each file through `own_file`, since users may write there. `torchrun_table`
  reads torchrun's table of failed workers, `ras` reads NCCL's answers, and `recorder` reads PyTorch's flight recorder.
* What is derived: `stacks` says what each rank does and for how long, `layout` which ranks belong to one parallel
  group, `exit_causes` why a rank ended, and `dead_mounts` whether a file system is dead on one node or on all. `ranks`
  writes sets of ranks as `0-2,5`.
* Beside the verdict: `apart` says whose nodes are tested first if nothing names a node, and `failure` makes a failure
  comparable with earlier ones.
* Slow jobs: `timings` is the table of step times, and `slow` judges it.
"""
