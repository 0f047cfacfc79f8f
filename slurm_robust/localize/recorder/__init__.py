"""Who waits for whom, as PyTorch's flight recorder saw it?

Dumps are read (`dump`) and laid side by side (`align`); `votes.flight_recorder` judges them.
"""
