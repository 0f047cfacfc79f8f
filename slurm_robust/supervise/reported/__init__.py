"""Keeps and judges the reports of this job's nodes.

`watch_step` starts the `agents`, `fleet` keeps what they report, and `traffic` and `suspicion` judge it.
`node_reports` keeps what nodes report of themselves, and `kernel_records` judges what agents read in kernel logs.
"""
