"""Where can I try it?"""
