"""Bytes of a model: weights, attention, KV cache, drafts, adapters."""
