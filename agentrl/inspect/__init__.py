"""Looking at runs: what was tried, what it was worth, what was learned from it."""
