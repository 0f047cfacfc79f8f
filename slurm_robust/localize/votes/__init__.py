"""Which observations point at a node?

One module for each kind of vote; `localize.judge` asks them in order of strength.
"""
