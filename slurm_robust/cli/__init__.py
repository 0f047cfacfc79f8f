"""What do I type?"""
