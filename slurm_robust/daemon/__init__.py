"""Who does it?"""
