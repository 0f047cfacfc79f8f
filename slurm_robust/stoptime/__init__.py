"""Tests nodes while the training stands still, and names the node that fails.

`run` leads the tests, and `conclusion` makes one verdict of their results.

* The step: `agent_step` starts one step with a `node_agent` on each node, and `agent_state` keeps what each agent
  tells. `node_name` lets two tests on one node notice each other, and `job_environment` finds the NCCL variables of the
  job's ranks.
* Processes on a node: `rank_server` forks the ranks of a test, which meet by `rank_meeting`, guarded by `store_guard`,
  and share `rank_tools`. The ranks run `node_rank` (within a node), `pair_rank` (two nodes), `shape_rank` (in the
  job's parallel layout) or `reference_step` (one step of a small model). `node_tools` runs NVIDIA's own tests.
* Stages: `in_node_stage` runs the full check and the tests within nodes, and `pair_stage` the tests of pairs of nodes.
* Judgement (pure): `in_node` judges each node, `group_results` one pair's answers, `pairing` chooses the next pairs
  and names nodes or links, and `alignment` finds GPUs that compute other bits.
* Replay of the training: `replay_groups` chooses groups of nodes and names the faulty one (pure), `replay_run` starts
  a step for each group, with the user's command or `reference_replay`, and `replay_results` reads how the step ended.
"""
