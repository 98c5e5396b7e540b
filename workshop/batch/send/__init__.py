"""Send requests to servers: a limited number at once, and again where a retry can help."""
