"""What do I type? One thin module for each subcommand, loaded only when it is typed.

`main` has the table of subcommands; `commands` has a module for each. They read the daemon's snapshot through `state`,
find in it what `needs` a person, and print it with `table`; `teaching` adds examples and exit codes to every `--help`.
"""
