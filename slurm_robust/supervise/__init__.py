"""Is this job making progress?"""
