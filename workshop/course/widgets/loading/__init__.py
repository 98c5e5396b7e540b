"""A recorded start of vLLM, played line by line."""
