"""Finds the news in gigabytes of output: what healthy steps did not print.

`lines` reads a file as logical lines, each with its key: the line with its digits masked. `prefix` finds out who
printed a line and when, `steps` which lines count the training's steps, `templates` the text of a line without its
numbers, and `interest` which lines must never be lost; `line_shape` keeps all these results for lines with one key.
`tracebacks` puts each rank's traceback together. `tallies` counts within a budget of memory. `compress` passes all
lines of all files through these modules and returns the `page`, which `render` writes as text, with secrets removed by
`masking`.
"""
