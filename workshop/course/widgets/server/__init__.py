"""The panel that finds a server, or starts one at a click."""
