"""Is every GPU there, sound and set up as its jobs expect?

A file for each check, named after the check; the first line of its docstring is its question. `gpu_count`,
`gpu_driver` and `gpu_identity` ask whether the GPUs are there, `xid` whether one has reported a fault. The others ask
about one property each: memory, links, clocks, heat, settings.
"""
