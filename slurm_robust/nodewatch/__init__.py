"""What happens to this node now? A root service that follows the kernel log, NVML and links, and tells jobs.

Sources make events, the node checks' own catalogue judges them, and the ring file carries findings to agents.
"""
