"""A text coloured by what the model thought of each token."""
