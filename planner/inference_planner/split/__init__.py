"""Which GPU has what: a deployment, its ranks, and what travels between them."""
