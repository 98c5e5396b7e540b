"""Keep answers: the output's files, its lines and journal, and where they came from."""
