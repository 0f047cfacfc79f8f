"""What do I type? One thin module for each subcommand, loaded only when it is typed.

`entry` is the console script: it starts a training step without loading click (`run_step`), and leaves all else to
`main`, which has the table of subcommands. `commands` has a module for each subcommand, and `diagnosis` does the work
of `srobust diagnose`. What several commands share:

* `state` reads the daemon's state. `table` prints tables and paragraphs, `csv_output` prints CSV, and `page_file`
  writes a page to a file.
* `teaching` adds examples and exit codes to every `--help`, and words errors.

What one command uses:

* `ckpt_output` prints the answers of `srobust ckpt`.
* `report_source` reads the facts for `srobust report`, and `report_output` prints or writes the report.
* `hinting` asks for the hint of `srobust diagnose --hint`, and `rule_review` shows the rules that hints have proposed.
* `standby_history` computes pool sizes for `srobust standby size`.
* `undecided` ends `srobust test` if its tests could not tell whether a node fails.
"""
