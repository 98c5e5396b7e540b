"""What differs between releases of vLLM."""
