"""What does a language model make of a log that no rule knows?

`page` chooses lines of the log, and `masking` takes out secrets, names and addresses; `prompt` puts them into a
question, fenced as data. `client` asks the site's endpoint, the only module here that opens a connection. `vote`
checks the answers and makes one hint of several samples; `asking` runs these in order. `proposal` keeps the rule that
a hint proposes in a review folder, until a person accepts it. A hint is a text for people: nothing acts on it.
"""
