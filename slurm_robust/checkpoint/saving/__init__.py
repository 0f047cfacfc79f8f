"""How is a checkpoint saved without stopping the training?

The step copies the state; another process writes and seals the files. `checkpointer`: what the training loop calls.
`rank`: copies the state into one of two buffers in shared memory. `persister`: one process a node writes the buffers to
files. It imports no torch: a buffer is, byte for byte, the file. `backup`: copies are sent to other nodes. `restart`: a
new run resumes from all of these. `shared`: parts that several of these folders use.
"""
