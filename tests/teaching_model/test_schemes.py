"""Quantizing the whole teaching model, and the checkpoints that are written of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from inference_planner.catalog import load_model
from inference_planner.model.weights import weight_bytes
from needs import SEED

from workshop.errors import BadInput
from workshop.teaching_model import reference, schemes


@pytest.fixture(scope="module")
def inputs(model):
    return schemes.calibrate(model, schemes.text("calibration")[:8])


@pytest.fixture(scope="module")
def awq_weights(model, inputs):
    """The weights with AWQ's factors folded in: searching for them is what takes long."""
    weights = dict(model.weights)
    schemes.fold_awq(weights, model, inputs, schemes.SCHEMES["int4-awq"])
    return weights


@pytest.fixture(scope="module")
def quantized(model, inputs, awq_weights):
    """Quantize with a scheme, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemes, "fold_awq", lambda weights, *_: weights.update(awq_weights))
        yield cache(lambda name: schemes.quantize(model, name, inputs))


def test_calibration_keeps_the_mean_of_x_x_transposed(model):
    seen = []

    def watch(name, x):
        if name == "model.layers.0.mlp.down_proj":
            seen.append(x.reshape(-1, x.shape[-1]))
        return x

    ids = schemes.text("calibration")[:2, :32]
    reference.Llama(model.weights, model.config, watch).logits(ids)
    x, statistics = (
        seen[0].astype(np.float64),
        schemes.calibrate(model, ids)["model.layers.0.mlp.down_proj"],
    )
    assert np.allclose(statistics.hessian, x.T @ x / 64, atol=1e-4) and np.allclose(
        statistics.size, np.abs(x).mean(0), atol=1e-5
    )


def test_folding_awq_factors_leaves_the_model_the_same(model, awq_weights):
    ids, name = schemes.text("known")[:1, :48], "model.layers.0.mlp.down_proj.weight"
    assert not np.array_equal(awq_weights[name], model.weights[name])
    folded = reference.Llama(awq_weights, model.config)
    # norms are kept in bfloat16
    assert np.abs(folded.logits(ids) - model.logits(ids)).mean() < 0.05


def test_fewer_bits_cost_more_and_methods_win_back(quantized):
    ids = schemes.text("known")[:2]
    loss = {
        name: float(reference.token_losses(quantized(name).model, ids).mean())
        for name in ("bf16", "int8", "int4-gptq", "int4-rtn", "int4-rtn-row", "int2-rtn")
    }
    assert list(loss) == sorted(loss, key=loss.get)
    assert loss["int8"] - loss["bf16"] < 0.02 and loss["int2-rtn"] > 5


def test_an_fp8_kv_cache_changes_little_but_something(model):
    ids = schemes.text("known")[:1, :64]
    plain, fp8 = model.logits(ids), schemes.quantize(model, "fp8-kv").model.logits(ids)
    assert 0 < np.abs(plain - fp8).mean() < 0.5


def test_what_cannot_be_is_refused(model):
    with pytest.raises(BadInput, match="no calibration"):
        schemes.quantize(model, "int4-gptq")
    with pytest.raises(BadInput, match="int5"):
        schemes.quantize(model, "int5")
    with pytest.raises(BadInput, match="does not divide 448"):
        schemes.quantize(model, schemes.Scheme("rtn", 4, 128))
    with pytest.raises(BadInput, match="no text"):
        schemes.text("novel")


def test_gptq_is_further_from_the_weights_and_nearer_in_the_loss(model, quantized):
    plain, gptq, ids = quantized("int4-rtn"), quantized("int4-gptq"), schemes.text("known")[:2]
    assert schemes.weight_error(model, gptq) > schemes.weight_error(model, plain) > 0.05
    assert reference.perplexity(gptq.model, ids) < reference.perplexity(plain.model, ids)
    assert schemes.weight_error(model, quantized("bf16")) == 0


def test_stored_bytes_are_those_of_the_shards(model):
    shards = sum(
        p.stat().st_size for p in Path(schemes.__file__).parent.glob("model-*.safetensors")
    )
    assert 0 < shards - schemes.quantize(model, "bf16").stored_bytes < 10_000  # the headers


@pytest.mark.parametrize("name", ["int8", "fp8", "int4-rtn", "int4-gptq", "int4-awq"])
def test_a_checkpoint_has_the_bytes_that_the_plan_and_the_scheme_say(quantized, name, tmp_path):
    pytest.importorskip("torch")
    from benchmarks.teaching_model import export

    result = quantized(name)
    folder = export.write(result, tmp_path / name)
    size = (folder / "model.safetensors").stat().st_size
    config = load_model(folder)
    assert config.quantization and config.quantization.weight_bits == result.scheme.bits
    # GPTQ's format also has zero points, all the same, and the group of each input.
    assert size == pytest.approx(result.stored_bytes, rel=0.015)
    # The plan counts 32-bit scales for 8-bit rows, as vLLM holds them.
    assert weight_bytes(config) == pytest.approx(result.stored_bytes, rel=0.01)


def test_codes_are_packed_as_compressed_tensors_packs_them():
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    from benchmarks.teaching_model.export import nibbles

    codes = np.random.default_rng(SEED).integers(-8, 8, (16, 64)).astype(np.int16)
    values = torch.from_numpy(codes.astype(np.int8))
    assert (nibbles(codes + 8, axis=1) == helpers.pack_to_int32(values, 4, packed_dim=1)).all()
    assert (nibbles(codes + 8, axis=0) == helpers.pack_to_int32(values, 4, packed_dim=0)).all()


def test_awq_puts_outputs_into_nibbles_in_its_own_order():
    pytest.importorskip("torch")
    from benchmarks.teaching_model.export import AWQ_ORDER, nibbles

    word = int(nibbles(np.arange(8)[None], axis=1, order=AWQ_ORDER)[0, 0]) & 0xFFFFFFFF
    # AutoAWQ, awq/modules/linear/gemm.py: order_map [0, 2, 4, 6, 1, 3, 5, 7], least significant first
    assert f"{word:08x}" == "75316420"


def test_two_bits_have_no_checkpoint_format_but_their_values_do(model, tmp_path):
    pytest.importorskip("torch")
    from benchmarks.teaching_model import export

    result = schemes.quantize(model, "int2-rtn")
    with pytest.raises(BadInput, match="2 bits"):
        export.write(result, tmp_path / "a")
    config = json.loads(
        (export.write(result, tmp_path / "b", dequantized=True) / "config.json").read_text()
    )
    assert "quantization_config" not in config
