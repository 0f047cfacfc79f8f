"""What does the daemon remember?

One SQLite file. `schema` has its tables, and brings an older file to the newest version. `journal` writes incidents,
actions and events. A module for each of the other books:

* `node_ledger` keeps quarantines, strikes, standby checks and drains, `pair_ledger` the tests of two nodes, and
  `repair_ledger` the tries to repair a node.
* `attempt_ledger` keeps the attempts of every training, and how large the cluster and its pools were.
* `seat_bars` keeps the users whose claims wait, since another job of theirs has started in a seat.
* `drain_history` tells how long each drain lasted, and whether the drain was for nothing.
"""
