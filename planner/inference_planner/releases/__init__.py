"""The differences between releases of vLLM."""
