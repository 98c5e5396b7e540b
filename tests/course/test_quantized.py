"""The recorded table of quantization says what it should, and docs/quantization.md shows it as it is."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
from inference_planner.catalog import load_model
from inference_planner.model.weights import parameters
from inference_planner.tables import quantized as planned

from workshop.course.topics import quantized
from workshop.errors import BadInput

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")


def test_the_page_shows_the_recorded_and_the_planned_table():
    filled = runpy.run_path(str(ROOT / "benchmarks" / "quantization" / "page.py"))["filled"]
    assert filled(PAGE) == PAGE, "run: python benchmarks/quantization/page.py"


def test_every_scheme_was_measured():
    from workshop.teaching_model.schemes import SCHEMES

    assert set(quantized.measured()["schemes"]) >= set(SCHEMES)


def test_the_reference_agrees_with_the_engine_where_both_ran():
    both = {
        name: (row["numpy"], row["engine"])
        for name, row in quantized.measured()["schemes"].items()
        if "numpy" in row and "glosses" in row.get("engine", {})
    }
    assert {"bf16", "int8", "int4-rtn", "int4-gptq", "int4-awq"} <= set(both)
    for name, (ours, theirs) in both.items():  # float32 against bfloat16
        assert theirs["glosses"] == pytest.approx(ours["glosses"], abs=0.05), name
        assert abs(theirs["right"] - ours["right"]) <= 4, name


def test_bf16_is_what_the_models_card_says():
    assert quantized.measured()["schemes"]["bf16"]["numpy"]["right"] == 160


def test_bits_of_the_page():
    # 4 bits and a 16-bit scale and a 4-bit zero for 128 weights; embeddings of 70B: 2 · 128256 · 8192 of all parameters
    assert f"{4 + 20 / 128:.2f}" == "4.16"
    assert round(100 * 2 * 128256 * 8192 / parameters(load_model("llama-3.1-70b"))) == 3
    assert round(100 * 8192 * 448 / 11_702_208) == 31


def test_planned_weights_follow_from_the_bits(subtests):
    for model, gpu, gpus, form, gib in [
        # Llama 3.1 70B: 68.45 B of Linears and 2.1 B of embeddings; 8 bits: 1 byte, 4 bits: 0.5195 bytes a Linear's weight
        ("llama-3.1-70b", "h100", 4, "FP8 W8A8", (68.45e9 + 2.1e9 * 2) / 2**30),
        (
            "llama-3.1-70b",
            "h100",
            4,
            "INT4 AWQ",
            (68.45e9 * (4 + 20 / 128) / 8 + 2.1e9 * 2) / 2**30,
        ),
    ]:
        with subtests.test(model):
            rows = {s.format: s for s in planned.savings(model, gpu, gpus)}
            assert rows[form].weights_gib == pytest.approx(gib, rel=0.01)


def test_an_fp8_cache_doubles_tokens_and_nothing_else():
    plain, fp8 = planned.savings("llama-3.1-8b", "a10g", 1, ("bfloat16", "FP8 KV cache"))
    assert fp8.kv_times == pytest.approx(2, rel=0.01) and fp8.weights_gib == plain.weights_gib
    assert math.isclose(fp8.speed_times, 1, rel_tol=0.05)


def test_a_gpu_without_the_kernels_is_refused():
    with pytest.raises(BadInput, match="KV cache"):
        planned.savings("llama-3.2-1b", "t4", 1, ("bfloat16", "FP8 KV cache"))
