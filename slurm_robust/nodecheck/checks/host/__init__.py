"""Can a job live on this node: memory, processors, file systems, kernel, clock?"""
