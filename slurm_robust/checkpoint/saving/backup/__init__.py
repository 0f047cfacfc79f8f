"""How does a checkpoint in memory survive the loss of its node?

`placement` and `second_copies` choose the nodes, `handshake` authenticates, `sender` and `receiver` move the bytes.
"""
