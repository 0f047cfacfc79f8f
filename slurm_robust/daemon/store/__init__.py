"""What does the daemon remember?

The journal in SQLite: incidents, actions, events (`journal`), books on nodes (`node_ledger`), attempts of trainings and
what there was to use (`attempt_ledger`), what became of drains (`drain_history`), tables (`schema`).
"""
