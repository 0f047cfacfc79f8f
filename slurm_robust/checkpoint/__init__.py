"""Where can training resume?"""
