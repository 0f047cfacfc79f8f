"""What does the daemon keep true?

One controller each: it compares what Slurm shows with what should be, and asks the actor for the next action.
"""
