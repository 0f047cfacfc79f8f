"""Shows which rank waits for which, as PyTorch's flight recorder saw it.

`dump` reads the dump of one rank, and `align` compares the dumps of all ranks. `votes/flight_recorder.py` judges the
result.
"""
