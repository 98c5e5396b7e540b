"""Talk to a running server, and compute what sampling parameters and log probabilities mean."""
