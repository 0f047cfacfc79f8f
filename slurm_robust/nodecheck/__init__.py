"""Is this node fit to train?"""
