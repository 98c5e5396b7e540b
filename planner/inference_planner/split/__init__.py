"""A deployment on its GPUs: the ranks, and what travels between them."""
