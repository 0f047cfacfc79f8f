"""What is known about faults and hardware, as tables?

XID and SXID codes, kernel messages, network cards, and the explanation of every check.
"""
