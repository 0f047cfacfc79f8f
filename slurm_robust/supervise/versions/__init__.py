"""Which version of its code does the job run? Snapshots of a folder, and the orders that put another one in force.

`selection` says what of the folder belongs to a version, `snapshot` copies it, `changes` compares it with the version
before, and `version_folder` keeps them in the incident folder. `code_orders` reads what `srobust update` asks for, and
`code_keeper` has it done.
"""
