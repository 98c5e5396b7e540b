"""Read a file of prompts, and make requests of its rows before anything is sent."""
