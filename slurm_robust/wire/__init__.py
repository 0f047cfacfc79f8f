"""How is a file read or written where somebody else could have put something in its place?

`own_folder` opens folders that nobody else may write, `plain_file` reads a file and follows no link, `whole_file`
writes a file whole or not at all, and `secret_file` reads a secret that nobody else may read. `plain_pickle` reads a
stranger's pickle or JSON within bounds of size and time.
"""
