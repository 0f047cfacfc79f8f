"""Who is at fault?"""
