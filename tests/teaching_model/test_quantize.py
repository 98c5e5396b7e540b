"""Quantization of one matrix: rounding, GPTQ, AWQ and 8-bit floats against what can be worked out elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from needs import SEED

from workshop.errors import BadInput
from workshop.teaching_model import quantize as q


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


def correlated(rng, inputs: int, tokens: int = 4000) -> np.ndarray:
    """Inputs whose columns hang together, as a model's do; returns their mean x xᵀ."""
    x = rng.normal(size=(tokens, inputs // 4)) @ rng.normal(
        size=(inputs // 4, inputs)
    ) + 0.3 * rng.normal(size=(tokens, inputs))
    return x.T @ x / tokens


def test_a_row_by_hand():
    # max |w| = 1.5, so a step is 1.5 / 7.5 = 0.2 (bfloat16: 0.2001953125)
    quantized = q.round_to_nearest(np.array([[0.52, -0.35, 0.13, -1.5]], np.float32), 4)
    assert quantized.codes.tolist() == [[3, -2, 1, -7]] and quantized.scales[0, 0] == pytest.approx(
        0.2, rel=2e-3
    )
    assert quantized.dequantize()[0] == pytest.approx([0.6, -0.4, 0.2, -1.4], rel=2e-3)


def test_no_number_is_further_from_its_code_than_half_a_step(rng, subtests):
    for bits in [2, 3, 4, 8]:
        for symmetric in [True, False]:
            with subtests.test(f"{bits}, {symmetric}"):
                w = rng.normal(size=(6, 64)).astype(np.float32)
                quantized = q.round_to_nearest(w, bits, 32, symmetric)
                step = np.repeat(quantized.scales, 32, 1)
                # A bfloat16 scale may be 0.4 % too small for the largest number, which is then cut.
                assert (np.abs(quantized.dequantize() - w) <= step * (0.5 + 0.004 * 2**bits)).all()
                least = -(2 ** (bits - 1)) if symmetric else 0
                assert quantized.codes.min() >= least and quantized.codes.max() < least + 2**bits


def test_stored_bytes_count_codes_scales_and_zeros():
    w = np.ones((448, 1152), np.float32)
    assert q.round_to_nearest(w, 4, 64).stored_bytes == 448 * 1152 // 2 + 448 * 18 * 2
    assert (
        q.round_to_nearest(w, 4, 64, symmetric=False).stored_bytes
        == 448 * 1152 // 2 + 448 * 18 * 2 + 448 * 18 // 2
    )


def test_a_group_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(BadInput, match="does not divide 448") as caught:
        q.round_to_nearest(np.ones((2, 448), np.float32), 4, 128)
    assert "32, 64, -1" in caught.value.remedy
    with pytest.raises(BadInput, match="9 bits"):
        q.round_to_nearest(np.ones((2, 64), np.float32), 9, 64)


def test_gptq_is_plain_rounding_where_inputs_do_not_hang_together(rng):
    w = rng.normal(size=(8, 64)).astype(np.float32)
    assert (q.gptq(w, np.eye(64), 4, 32).codes == q.round_to_nearest(w, 4, 32).codes).all()


def test_gptq_makes_good_the_first_columns_error_in_the_second():
    # With H = [[1, .9], [.9, 1]] the best answer to an error e of column 0 is 0.9 · e more in column 1 (least squares).
    w, h = np.array([[0.30, 1.0]]), np.array([[1.0, 0.9], [0.9, 1.0]])
    step = 1 / 7.5
    first = round(0.30 / step)  # 2, which is 0.267: e = 0.033
    second = round((1.0 + 0.9 * (0.30 - first * step)) / step)  # 1.030 / 0.133 = 7.7, cut at 7
    quantized = q.gptq(w, h, 4, -1, damp=0.0)
    assert quantized.codes.tolist() == [[first, min(second, 7)]]
    # …and where the codes have room, the second really changes:
    w = np.array([[0.30, 0.46, 1.0]])
    h3 = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert (
        q.gptq(w, h3, 4, -1, damp=0.0).codes[0, 1]
        == round((0.46 + 0.9 * (0.30 - 2 * step)) / step)
        == 4
    )
    assert q.round_to_nearest(w, 4).codes[0, 1] == 3


def test_gptq_makes_good_an_error_in_the_next_group():
    # Columns 1 and 2 hang together, and are in different groups of two: 0.46 + 0.9 · 0.033 is 3.7 steps of 1 / 7.5.
    w, h = np.array([[1.0, 0.30, 0.46, 1.0]]), np.eye(4)
    h[1, 2] = h[2, 1] = 0.9
    assert q.gptq(w, h, 4, 2, damp=0.0).codes.tolist() == [[7, 2, 4, 7]]
    assert q.round_to_nearest(w, 4, 2).codes.tolist() == [[7, 2, 3, 7]]


def test_gptq_changes_the_outputs_less_than_rounding(rng):
    h, w = correlated(rng, 128), rng.normal(size=(32, 128)).astype(np.float32)
    plain = q.output_error(w, q.round_to_nearest(w, 4, 64).dequantize(), h)
    assert q.output_error(w, q.gptq(w, h, 4, 64).dequantize(), h) < plain / 2


def test_output_error_is_the_mean_squared_change_over_tokens(rng):
    x, w, other = rng.normal(size=(50, 16)), rng.normal(size=(4, 16)), rng.normal(size=(4, 16))
    direct = np.mean(np.sum((x @ (other - w).T) ** 2, 1))
    assert q.output_error(w, other, x.T @ x / 50) == pytest.approx(direct)


def test_awq_spares_the_columns_with_large_inputs(rng):
    size = np.ones(64)
    size[:4] = 50
    w, h = rng.normal(size=(16, 64)).astype(np.float32), np.diag(size**2)
    factor, alpha = q.awq_scales([w], h, size, 4, 64)
    assert alpha > 0 and factor[:4].min() > factor[4:].max()
    plain = q.output_error(w, q.round_to_nearest(w, 4, 64, symmetric=False).dequantize(), h)
    scaled = q.output_error(
        w, q.round_to_nearest(w * factor, 4, 64, symmetric=False).dequantize() / factor, h
    )
    assert scaled < plain / 2


def test_awq_leaves_a_matrix_alone_whose_inputs_are_all_alike(rng):
    factor, _ = q.awq_scales(
        [rng.normal(size=(8, 64)).astype(np.float32)], np.eye(64), np.ones(64), 4, 64
    )
    assert factor == pytest.approx(np.ones(64))


def test_e4m3_rounds_to_its_steps(subtests):
    for number, nearest in [
        # 3 bits of mantissa: steps of 2 from 16 to 32, ties to the even one; least step 2**-9; most 448
        (17.0, 16.0),
        (19.0, 20.0),
        (18.9, 18.0),
        (1e6, 448.0),
        (-500.0, -448.0),
        (2.0**-9, 2.0**-9),
        (2.0**-11, 0.0),
        (0.0, 0.0),
        (1.0625, 1.0),
        (1.07, 1.125),
    ]:
        with subtests.test(str(number)):
            assert q.to_e4m3(np.array([number], np.float32))[0] == nearest


def test_e4m3_is_what_torch_rounds_to(rng):
    torch = pytest.importorskip("torch")
    x = (
        (rng.normal(size=20_000) * np.exp(rng.normal(size=20_000) * 3))
        .clip(-448, 448)
        .astype(np.float32)
    )
    theirs = torch.from_numpy(x).to(torch.float8_e4m3fn).to(torch.float32).numpy()
    assert (q.to_e4m3(x) == theirs).all()


def test_eight_bit_rows_are_close_and_survive_zeros(rng, subtests):
    for rows in [q.int8_rows, q.float8_rows]:
        with subtests.test(str(rows)):
            x = np.concatenate([rng.normal(size=(5, 64)), np.zeros((1, 64))]).astype(np.float32)
            codes, scales = rows(x)
            assert (
                np.linalg.norm(codes * scales - x) / np.linalg.norm(x) < 0.03
                and not (codes * scales)[5].any()
            )
