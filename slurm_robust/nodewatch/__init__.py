"""What happens to this node now? A root service that follows kernel log, NVML and links, and tells jobs.

`service` is the loop: it waits for all sources, has their records judged by the node checks' catalogue, and writes the
findings to the file that agents read (`ring`). `once` asks all sources one time (`--once`), and `moment` is one
reading of all clocks.

* Sources, each a `source`: `kmsg_follower` reads the kernel log, `link_listener` hears links go up and down,
  `nvml_watch` receives NVML's events, `polls` repeats node checks, and `host_load` measures processes that belong to
  no job. `child` runs sources that may hang in a process of their own.
* Judgement: `kernel_lines` judges lines of the kernel log, `verdicts` the findings of checks, and `sent_records` lines
  that the agent of another node has sent. `urgency` says how urgent a finding is for jobs. `disk_use` says whether a
  lost disk was in use, and `gpu_numbers` gives a GPU's number from its PCI address.
* Telling: `slurm_reporter` marks the fault for srobustd or drains the node, and `settings_file` follows changes of
  robust.yaml and tells the daemon in which mode the node watch is. `explain` writes the table of urgencies into
  docs/nodewatch.md.
"""
