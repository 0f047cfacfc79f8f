"""Where do the facts come from?

`journal` reads the daemon's journal, `folders` reads in the incidents' own folders what broke, `causes` adds the
reasons for which suspects were drained, and `accounting` asks Slurm for every job. `doubts` finds times that
contradict each other, and `wording` writes them as sentences. A report needs none of these sources: it names each one
that is missing among its doubts.
"""
