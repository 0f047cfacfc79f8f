"""Writing checkpoints beside a training: copied in the step, written and sealed outside of it.

`Checkpointer` is what a training loop calls. It copies the state into one of two buffers in shared memory; a process
of its own, the persister, writes them. The persister imports no torch: a buffer is, byte for byte, the file.
"""
