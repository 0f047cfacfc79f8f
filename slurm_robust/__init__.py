"""slurm_robust: training jobs on plain Slurm that survive hangs, crashes and bad nodes.

What a training script uses is `slurm_robust.progress` and `slurm_robust.checkpoint`, each imported by name. Importing
the package itself loads nothing else, since the agent on every node and the prolog import it too.

* A job: `supervise` starts it and brings it back, `localize` finds who is at fault, `diagnose` finds what broke, and
  `checkpoint` saves and finds checkpoints. `hint` asks a language model, and `stoptime` tests the job's nodes.
* A node: `nodecheck` checks whether the node is fit, and `nodewatch` follows what happens to it.
* The cluster: `daemon` drains nodes and requeues jobs, `policy` decides for jobs and for the cluster, `report` tells
  how the cluster did, and `notify` tells people.
* A person: `cli` has the commands, `doctor` checks a site's setup, and `devcluster` starts a Slurm to try all this.
* What all use: `core` has the nouns, `config` the site's settings, `marks` what stands in Slurm's fields, `wire` safe
  reading of others' files, and `slurm` the calls to Slurm.

docs/architecture.md says where each question is decided.
"""

__version__ = "0.1.0"
