"""The former name of `workshop.servers`. Kept for one release, because running servers name it."""
