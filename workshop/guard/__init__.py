"""Middlewares in front of vLLM's HTTP server: keys, request limits, fair share."""
