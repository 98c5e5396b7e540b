"""Show which GPU holds which layers and heads, and what travels between them."""
