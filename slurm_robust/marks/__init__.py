"""What stands in Slurm's fields and in a node's one file: who writes it, and how is it read as untrusted text?

* A job's record: `claim` is what a job asks of the daemon, in its Comment, and the daemon's answer.
* A node's Comment: `drain_permit` lets the node's own scripts drain it, and `lease_marker` says which daemon acts.
* A node's Extra: `fault_marker` says that a fault has struck the node, `blind_marker` that its GPUs cannot be seen or
  that a mount is full, and `watch_marker` in which mode its node watch is.
* A drain's reason: `remedy` is the tag that says what can repair the node.
* A node's file: `node_findings` are the findings that the node watch writes for the agents of jobs.

`field_text` has what the markers share: which text Slurm's fields take, and how a marker is found and removed.
"""
