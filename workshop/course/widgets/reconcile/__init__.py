"""A plan beside what vLLM's log says."""
