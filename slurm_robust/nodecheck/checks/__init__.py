"""The checks: a folder a subject, a module each, in each module one object `check`."""
