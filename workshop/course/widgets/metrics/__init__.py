"""What a server says at /metrics while it works, as charts."""
