"""Commands that send something to a server, or read what it wrote."""
