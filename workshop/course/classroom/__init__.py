"""A simulated class against a server."""
