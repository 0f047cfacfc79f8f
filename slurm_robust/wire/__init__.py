"""How are files and messages read that somebody else could have written?"""
