"""What does each subcommand of `srobust` do? One thin module for each, imported when it is typed.

A module is named after its subcommand: `srobust run` is `run`. Subcommands of a subcommand have a module of their own
if they are long: `ckpt_seal`, `diagnose_rules`, `report_lemons`, `report_sql`. To add a subcommand, write its module
and add a line to the table in `cli/main.py`.
"""
