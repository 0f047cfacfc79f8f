"""What do ranks, persisters and restarts have in common?

The memory image, the layout of a rank's file, the messages, the tiers.
"""
