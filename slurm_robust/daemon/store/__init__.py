"""What does the daemon remember?

The journal in SQLite: incidents, actions, events (`journal`), books on nodes (`node_ledger`), tables (`schema`).
"""
