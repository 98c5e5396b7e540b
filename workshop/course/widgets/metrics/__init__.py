"""Draw what a server reports at /metrics while it works, as charts."""
