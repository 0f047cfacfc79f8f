"""What is known about faults and hardware, as tables?

`xids` and `sxids` say what NVIDIA's codes mean for GPUs and NVSwitches, and `kernel_patterns` what the kernel's
messages mean. `job_urgency` has the words for how urgent a fault is for jobs. `remedies` says which faults may be
repaired without a person. `network_cards` knows cards by their PCI id. `explain` writes the explanation of every
check, for `srobust check --list` and docs/checks.md.
"""
