"""Keeps the versions of a job's code: snapshots of a folder, and the orders that put another version in force.

`selection` says which files of the folder belong to a version, `snapshot` copies them, `changes` compares the version
with the one before, and `version_folder` keeps the versions in the incident folder. `code_orders` reads the orders of
`srobust update`, and `code_keeper` carries them out.
"""
