"""Variants of a model in other precisions, for comparisons and advice."""

from __future__ import annotations

from workshop.plan.catalog import quantization as quant
from workshop.plan.catalog.config import ModelConfig


def fp8_variant(m: ModelConfig) -> ModelConfig:
    """Return the model with its Linear weights in FP8, as `--quantization fp8` loads it."""
    return m.with_quantization(quant.from_name("fp8"))
