"""How did the cluster do?

`read` collects `facts` from the `sources`, and `narrow` leaves those of one job or one user. Nothing here acts on
anything.

* Figures: `figures` computes what the facts mean, `lemons` finds nodes that fail more often than chance explains, and
  `characterise` says what runs on the cluster.
* Pages: `pages` writes them.
* Questions in SQL: `tables` makes tables of the facts, `table_texts` says what each column means, `query` runs one
  question, and `parquet` writes the tables as files.
"""
