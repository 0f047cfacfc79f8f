"""The watch step's agent, one on each node: watches the ranks and the node. Standard library only, Python >= 3.8.

`main` is the loop. Slurm carries the agent's messages over the watch step's stdin and stdout.

* Ranks: `ranks` finds them by their environment, `rank_table` reports their progress and states, `timings` their step
  times, `exits` how their tasks ended, `rank_python` their Python, and `gpu_use` their GPUs.
* The node: `node_ring` reads what the node watch has found. If there is no node watch, `kernel_watch` reads the kernel
  log, with the GPUs' numbers from `gpu_minors`, and `port_watch` watches the ports that `rdma_ports` reads.
  `repeated_send` sends a fault three times.
* On request (`request_runner`): `capture` takes stacks, `recorder` PyTorch's flight recorder and `ras` NCCL's view;
  `tcp_traffic` counts bytes, `mounts` tests file systems, and `gpu_holders` finds who still holds a GPU.
* Processes beside the ranks: `persisters` starts the process that writes checkpoints, `warm_processes` knows processes
  that wait for a restart, and `sigterm` keeps the agent until the ranks have ended.
* Messages: `messages` has all of them, with `mount_messages`, `stopped_messages` and `warm_messages`. `codec` makes
  JSON of them, `packing` compresses long texts, `wire` cuts lines, and `values` reads values that came over the
  channel.
* Reading the machine: `procfs` reads /proc, and `clock` the time.
"""
