"""What do the facts mean? Figures with their definitions.

`all_figures` computes all of these:

* Time: `trainings` joins attempts to trainings and divides their time, `ettr` is the share of productive time, and
  `expected` the formula's prediction of that share. `goodput` is how much of the machine became progress.
* Failures: `failures` says which incidents are failures, `failure_costs` what they cost, and `reliability` how long
  trainings run between them, by `size_classes`. `restarts` says where restarts spend their seconds, `node_events` what
  happened to each node, and `false_alarms` which actions and alarms were needless.
* Pools: `standby_use` judges the standby pools.

`spread` computes median and 90th percentile. Pure: facts in, values out. A figure that cannot be computed is None,
never 0, with a sentence that says why.
"""
