"""What do gigabytes of output say that healthy steps did not say?

`lines` reads a file as logical lines, each beside the same line with its digits masked. `prefix` knows whose line it is
and when it was printed, `steps` which lines count the training's steps, `templates` what is left of a line without its
numbers, `interest` which lines must never be lost; `line_shape` keeps all that for the lines with one key. `tracebacks`
puts each rank's traceback together. `tallies` counts within a budget of memory. `compress` leads all lines of all files
through these and returns the `page`, which `render` writes as text, with secrets removed by `masking`.
"""
