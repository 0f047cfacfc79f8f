"""Which question does each section of the report answer, and with which numbers?

A function for each section takes facts and figures and returns a `view.ReportSection`. Every section exists for every
cluster: if there is nothing to draw, its answer says so.

* `time_spent`: how much of the time did training move forward? `hours` counts in GPU hours, or in node hours if the
  GPUs are not known.
* `failures`: what broke, and what did it cost? `reliability`: how long does a job run between failures?
* `restarts`: where do restarts spend their seconds? `standby`: were there enough standby nodes?
* `trainings`: what happened to each training? `jobs`: what ran on the cluster?

`cut` shortens long lists and long times.
"""
