"""How do we talk to Slurm? The only code that does: one client interface, two back ends."""
