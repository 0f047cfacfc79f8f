"""What should be done?"""
