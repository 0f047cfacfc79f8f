"""One module a part: `steps(place)` yields what was tried, one after another."""
