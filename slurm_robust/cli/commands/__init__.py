"""One thin module for each subcommand of `srobust`, imported when it is typed."""
