"""For notebook 09: a slider for bits, the quantized teaching model, and recorded runs.

>>> from workshop.course.notebooks import nb09
>>> nb09.BitsExplorer(bits=4, group="64 inputs").result.bits_per_weight
4.25
>>> "bf16" in nb09.quantized.measured()["schemes"]
True
"""

import tempfile
from pathlib import Path

import numpy as np

from workshop.course.topics import quantized, recorded_data
from workshop.course.widgets.bits.view import BitsExplorer
from workshop.engine import measured_runs
from workshop.errors import WorkshopError
from workshop.measure import evaluation, paired
from workshop.measure.evaluation import Evaluation, TaskAnswer
from workshop.teaching_model import reference, schemes
from workshop.teaching_model.quantize import to_e4m3

__all__ = [
    "BitsExplorer",
    "evaluation",
    "measured_runs",
    "paired",
    "quantized",
    "reference",
    "schemes",
]

EVALUATED = "quantization/evaluated.json"  # written by benchmarks/quantization/evaluate.py
# of a code's three bits; one bit is the sign
NVFP4_LEVELS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
NVFP4_BLOCK = 16  # inputs that share a scale


def evaluate() -> Evaluation:
    """Ask the learner's server the 300 questions with lm-eval.

    Where the server or lm-eval is missing, return the recorded answers.
    """
    from workshop.client.client import connect  # not at the top: in a browser there is no client

    try:
        client = connect()
        with tempfile.TemporaryDirectory() as folder:
            return evaluation.run(client.record, client.model, Path(folder))
    except WorkshopError as error:
        print(f"{error.message} What follows is recorded: the same questions to the same model.")
        return evaluated()["bf16"]


def evaluated() -> dict[str, Evaluation]:
    """Return the recorded answers of each format, from vLLM's endpoint and lm-eval.

    bf16 is the format in which the model is published.
    """
    record = recorded_data.read(EVALUATED)
    runs = {}
    for name, row in record["schemes"].items():
        answers = {}
        for number, prompt in enumerate(record["prompts"]):
            text = row["other_texts"].get(str(number), record["texts"][number])
            answers[str(number)] = TaskAnswer(prompt, text, int(row["right"][number]))
        runs[name] = Evaluation(record["task"], "right", answers)
    return runs


def nvfp4(weight: np.ndarray) -> np.ndarray:
    """Return the values that NVFP4 stores of a weight [outputs, inputs].

    A value is a 4-bit float, with a scale in 8 bits for 16 inputs, and a scale in 32 bits for the
    whole matrix. The number of inputs must be a multiple of 16.

    Source: NVIDIA's format, as vLLM 0.32 reads it (nvfp4-pack-quantized of compressed-tensors).
    """
    blocks = weight.astype(np.float32).reshape(-1, NVFP4_BLOCK)
    largest = NVFP4_LEVELS[-1]
    whole_scale = np.abs(blocks).max() / (largest * 448.0)
    block_scales = to_e4m3(np.abs(blocks).max(1, keepdims=True) / largest / whole_scale)
    scales = np.maximum(block_scales, 2.0**-9) * whole_scale
    middles = (NVFP4_LEVELS[1:] + NVFP4_LEVELS[:-1]) / 2
    codes = np.searchsorted(middles, np.abs(blocks) / scales)
    return (np.sign(blocks) * NVFP4_LEVELS[codes] * scales).reshape(weight.shape)


def nvfp4_error(model: reference.Llama) -> float:
    """Return ‖ΔW‖ / ‖W‖ over all Linears of a model in NVFP4, as schemes.weight_error does."""
    squared_error = 0.0
    squared_weights = 0.0
    for name in model.linear_names():
        weight = model.weights[f"{name}.weight"]
        squared_error += float(np.sum((nvfp4(weight) - weight) ** 2))
        squared_weights += float(np.sum(weight**2))
    return (squared_error / squared_weights) ** 0.5
