"""Which nodes are taken out of service, tested, repaired and given back?

`marked_faults` reads the faults that nodes mark, and `leaf_faults` tells several of one switch as one. `quarantine`
keeps suspects free of jobs until `full_check`, `pair_tests` and `proof` are through. `repairs` repairs drained nodes
(`gpu_reset`), `lemons` finds nodes that fail again and again, `blind_nodes` tells who cannot check its GPUs, and
`drain_permits` tells the nodes whether they may drain themselves.
"""
