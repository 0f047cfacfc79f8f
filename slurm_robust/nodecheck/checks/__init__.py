"""The checks: one module each, each with one object `check`."""
