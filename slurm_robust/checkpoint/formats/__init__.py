"""Which framework wrote this checkpoint, and is it complete? One module a format, recognised by its files.

`registry` tries all formats on each folder (`tree`). `torchfile` and `safetensors` read single files. Nothing in a
checkpoint is executed: pickles are read by `inert`, which imports and calls nothing that they name.
"""
