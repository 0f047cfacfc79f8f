"""What all parts speak of: the six nouns, the mode, a reason's text, and what a stretch of time went into."""
