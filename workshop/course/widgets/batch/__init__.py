"""How far a batch is, as a bar."""
