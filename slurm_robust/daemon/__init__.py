"""Who does it? `srobustd`: reads Slurm, decides with `policy`, acts on Slurm.

`start` puts it together, `service` is its loop. Data passes in this order:

1. `service` reads jobs, nodes or reservations into the `context`, about once a second; of nodes, what has changed.
2. The `controllers` compare these readings with what should be, and ask `policy.cluster` what to do.
3. A plan is written to the journal in `store`, before anything is done about it.
4. The `actor` writes each action to the journal, then carries it out: only it changes Slurm.
5. `api` publishes the state.

What happens to a claim between a job's Comment and its requeue: see `recovery.claim_intake`.
"""
