"""What broke, in its own words?

`log/` makes a page of a job's output files: what was printed, how often, by which rank, and what is news. The causes
are read from that page. Pure code: it reads the files that it is given, and nothing else.
"""
