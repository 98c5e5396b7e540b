"""The distribution of the next token under the sampling parameters."""
