"""What should be done about one job?

`decide` turns a situation into a plan; `bad_loss` adds the rule for a loss that went bad. Pure.
"""
