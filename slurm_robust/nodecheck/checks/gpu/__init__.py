"""Is every GPU there, sound and set up as its jobs expect?"""
