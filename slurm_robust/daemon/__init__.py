"""Who does it? `srobustd`: reads Slurm, decides with `policy`, acts on Slurm.

`start` puts the daemon together, and `service` is its loop. Data passes in this order:

1. `service` reads jobs, nodes or reservations into the `context`, about once a second; of nodes it reads only changes.
   `jobs_together` reads several jobs in two calls.
2. The `controllers` compare these readings with what should be, and ask `policy.cluster` what to do.
3. A plan is written to the journal in `store` before it is carried out.
4. The `actor` writes each action to the journal, then carries it out. Only the actor changes Slurm, and `lease` tells
   it whether this daemon is the one that may act.
5. `api` publishes the state. `totals` counts the journal's rows, and keeps the sums for Prometheus in `counted`.
6. `log_alerts` chooses the lines of the audit log that people are told of, and `notifier` passes them to the process
   that sends messages.

These modules use the following ones: `own_jobs` chooses account and partition of the daemon's own jobs (rechecks, pair
tests) and waits if Slurm refuses them, `site_command` runs a site's own command, `children` ends a child process, and
`rate_limit` bounds how often something happens.

A claim's way from a job's Comment to the requeue begins in `controllers/recovery/claim_intake.py`.
"""
