"""Where do facts about a node come from?

Readers of /proc, /sys, /dev/kmsg and slurm.conf. Readers do not judge, and do not raise errors for missing files.

* Kernel log: `kmsg` reads the log, `kmsg_line` one line of it. `shared_kernel_log` reads it once for all checks.
  `kernel_looks` tells whether the node itself shows what a line says.
* Processes: `processes` reads all processes, and `job_cgroups` tells to which job a control group belongs.
* Disks and cards: `mounts` reads the mount table, `mdstat` RAID arrays, and `pci` PCI functions.
* Network: `network_links` reads interfaces and the cards below them, `rdma` RDMA ports, and `host_names` /etc/hosts
  and the resolver.
* Settings: `slurm_conf` says what slurm.conf says of this node. `small_files` reads single values of /proc and /sys.
"""
