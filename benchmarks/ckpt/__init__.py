"""What saving, verifying and loading checkpoints cost; `benchmarks/checkpoint.py` runs it."""
