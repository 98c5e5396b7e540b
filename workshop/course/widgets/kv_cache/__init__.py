"""A paged KV cache that fills step by step."""
