"""Show how fewer bits change a matrix of weights."""
