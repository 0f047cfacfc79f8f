"""Does this node reach its peers, its controller and its storage at full speed?

A file for each check, named after the check; the first line of its docstring is its question. `rdma_…` are about
InfiniBand and RoCE, all others about Ethernet, names and the kernel's settings.
"""
