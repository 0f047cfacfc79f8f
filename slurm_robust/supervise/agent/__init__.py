"""What happens on this node? The watch step's agent, one a node: standard library only, Python >= 3.8.

`ranks` finds the ranks by their environment, `rank_table` reads their progress pages and states and reports changes,
`node_ring` reads what a root service finds; without one, `kernel_watch` and `port_watch` look themselves.
`request_runner` takes stacks and traffic (`capture`, `tcp_traffic`), asks `mounts` and ends leftovers on demand.
`messages` are encoded by `codec`, cut into lines by `wire`, and carried by Slurm over the step's stdin and stdout.
`main` is the loop.
"""
