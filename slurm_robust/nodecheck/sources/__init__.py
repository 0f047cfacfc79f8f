"""Where do facts about a node come from?

Readers of /proc, /sys, /dev/kmsg and slurm.conf. None of them raises for what is missing, and none judges.
"""
