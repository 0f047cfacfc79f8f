"""From which saved copies do all ranks resume?

`held_images` lists what a node still has, `copy_choice` picks the newest complete save, `choose` weighs it against
files, `loading` reads it.
"""
