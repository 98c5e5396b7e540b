"""Commands of a class: shares, keys, progress."""
