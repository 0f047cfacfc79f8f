"""Asks a language model about a log that no rule knows.

`asking` runs these in order: `page` chooses lines of the log, `masking` takes out secrets, names and addresses, and
`prompt` puts the lines into a question, fenced as data. `client` asks the site's endpoint; it is the only module here
that opens a connection. `vote` checks the answers and makes one hint of several samples. `proposal` keeps the rule
that a hint proposes in a review folder, until a person accepts the rule. `errors` has the only exception, with a
sentence for people. A hint is a text for people: the software does not act on it.
"""
