"""Are enough checked nodes held in reserve?

`standby_sizes` says how many, `standby_pools` holds them, and `standby_check` checks them.
"""
