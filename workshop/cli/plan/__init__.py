"""Commands that plan: a server, the GPUs for many users, which models there are."""
