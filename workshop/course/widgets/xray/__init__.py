"""A trace of vLLM's scheduler as a page to step through, with predictions."""
