"""What fewer bits do to a matrix of weights."""
