"""A bar that shows how far a batch is."""
