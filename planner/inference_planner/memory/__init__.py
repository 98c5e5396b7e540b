"""Memory of a rank: peaks, CUDA graphs, and what is left for the KV cache."""
