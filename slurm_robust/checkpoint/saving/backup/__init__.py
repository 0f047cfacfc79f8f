"""How does a checkpoint in memory survive the loss of its node?

`placement` and `second_copies` choose the nodes, `setup` agrees on them, `handshake` authenticates, `sender` and
`receiver` move the bytes, `service` runs both inside a persister.
"""
