"""Compare a plan with the log of a start: its model, card and release, the differences and advice."""
