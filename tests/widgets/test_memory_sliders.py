"""The memory sliders without a browser: set a control, read the picture; what is drawn is what the planner says."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from inference_planner.answer.command import command_of
from inference_planner.catalog import list_models, load_model
from inference_planner.model.attention import kinds

from workshop.course.widgets.memory.case import MemoryCase, memory, remedies, verdict
from workshop.course.widgets.memory.picture import picture, spoken
from workshop.course.widgets.memory.view import MemorySliders
from workshop.engine.planning import plan
from workshop.errors import BadInput


@pytest.fixture
def sliders():
    return MemorySliders()


class TestCase:
    def test_it_says_what_the_plan_says(self):
        result = memory(MemoryCase("llama-3.1-70b", gpu="h200", gpus=4, context=131072))
        planned = plan(
            "llama-3.1-70b", "h200", tensor_parallel_size=4, usage="serve", max_model_len=131072
        )
        assert (result.fit.capacity.tokens, result.max_concurrency) == (
            planned.kv_cache_tokens,
            planned.max_concurrency,
        )
        assert result.stages[0].weights / 2**30 == pytest.approx(planned.weights_gib_per_gpu)
        assert result.stages[0].room / 2**30 == pytest.approx(planned.available_kv_gib_per_gpu)

    def test_bytes_of_a_request_are_those_of_its_tokens(self):
        # 80 layers × 2 × 8 KV heads × 128 × 2 bytes = 327,680 bytes a token (config.json), on 4 ranks
        result = memory(MemoryCase("llama-3.1-70b", gpus=4, context=8192, requests=3))
        assert result.request_bytes == 8192 * 327_680 // 4
        assert result.tightest.requested_kv == 3 * result.request_bytes

    def test_each_state_has_its_sentence(self, subtests):
        for case, state, says in [
            (MemoryCase(), "fits", "room for"),
            (MemoryCase("llama-3.1-405b", gpus=8), "refused", "does not fit"),
            (
                MemoryCase("llama-3.1-70b", gpus=2, context=131072, requests=1),
                "refused",
                "refuse to start",
            ),
            (MemoryCase("llama-3.1-8b", context=131072, requests=64), "waits", "the others wait"),
        ]:
            with subtests.test(str(case)):
                result = memory(case)
                assert result.state == state
                assert says in verdict(result)

    def test_a_remedy_that_names_gpus_works(self, subtests):
        for case in [
            MemoryCase("llama-3.1-405b", gpus=8),
            MemoryCase("llama-3.1-8b", context=131072, requests=64),
            MemoryCase("llama-3.1-70b", gpus=2, context=131072, requests=8),
        ]:
            with subtests.test(str(case)):
                from dataclasses import replace

                counts = [
                    int(remedy.split()[0]) for remedy in remedies(case) if remedy.endswith("GPUs")
                ]
                assert counts
                assert memory(replace(case, gpus=counts[0])).state == "fits"

    # 71 heads: tensor parallel cannot, pipeline parallel can
    def test_the_split_follows_the_rule(self, subtests):
        for model, gpus, sizes in [
            ("llama-3.1-70b", 4, (4, 1)),
            ("llama-3.1-405b", 16, (8, 2)),
            ("falcon-7b", 4, (1, 4)),
        ]:
            with subtests.test(model):
                result = memory(MemoryCase(model, gpus=gpus))
                assert (result.fit.tp, result.fit.pp) == sizes

    def test_absurd_numbers_are_refused(self):
        with pytest.raises(BadInput, match="requests is 0"):
            memory(MemoryCase(requests=0))
        with pytest.raises(BadInput, match="gpu_memory_utilization"):
            memory(MemoryCase(gpu_memory_utilization=1.5))

    def test_slices_are_not_joined_as_in_the_plan(self):
        """NCCL cannot join MIG slices; one of them alone is planned."""
        slices = MemoryCase(gpu="h100-mig-3g.40gb", gpus=2)
        with pytest.raises(BadInput, match="slice"):
            plan(slices.model, slices.gpu, tensor_parallel_size=2)
        with pytest.raises(BadInput, match="slice"):
            memory(slices)
        assert memory(MemoryCase(gpu="h100-mig-3g.40gb")).state == "fits"

    def test_what_vllm_refuses_does_not_fit(self):
        """A hybrid has its default of max_num_seqs lowered; all of the memory is never free."""
        hybrid = memory(MemoryCase("qwen3.5-35b-a3b", requests=1))
        planned = plan(
            "qwen3.5-35b-a3b", "h100", tensor_parallel_size=1, max_model_len=hybrid.case.context
        )
        assert hybrid.state == "fits" and command_of(hybrid.deployment) == planned.command
        assert "--max-num-seqs" in planned.command
        whole = memory(MemoryCase(gpu_memory_utilization=1.0, requests=1))
        assert whole.state == "refused" and "would refuse to start" in verdict(whole)

    def test_the_command_holds_what_was_chosen(self):
        line = command_of(
            memory(
                MemoryCase(
                    "llama-3.1-405b", gpus=16, context=4096, kv_cache_dtype="fp8", weights="fp8"
                )
            ).deployment
        )
        for part in (
            "Llama-3.1-405B",
            "--tensor-parallel-size 8",
            "--pipeline-parallel-size 2",
            "--max-model-len 4096",
            "--kv-cache-dtype fp8",
            "--quantization fp8",
        ):
            assert part in line


class TestPicture:
    def test_every_kind_of_attention_can_be_drawn(self, subtests):
        for name in {kinds(load_model(name)): name for name in list_models()}.values():
            with subtests.test(name):
                result = memory(MemoryCase(name, gpus=8, gpu="h200", context=1024))
                assert verdict(result).split(" Nearest")[0][:40] in picture(result).replace(
                    "&#x27;", "'"
                )

    def test_a_bar_a_gpu_and_words_for_screen_readers(self):
        result = memory(MemoryCase("llama-3.1-70b", gpus=4))
        text = picture(result)
        assert [f"GPU {n}</span>" in text for n in range(5)] == [True] * 4 + [False]
        assert 'role="img" aria-label="Memory of llama-3.1-70b on 4' in text
        assert "KV cache asked for" in spoken(result)

    def test_too_much_is_drawn_as_too_much(self):
        assert 'too much"' in picture(memory(MemoryCase("llama-3.1-405b", gpus=8)))
        assert 'too much"' not in picture(memory(MemoryCase()))


class TestView:
    def test_a_model_brings_its_own_precision_and_length(self, sliders):
        sliders.controls["context"].value = 131072
        sliders.controls["weights"].value = "fp8"
        sliders.controls["model"].show_all()
        sliders.controls["model"].value = "gpt-oss-20b"  # published in mxfp4
        assert sliders.controls["weights"].value == "as published"
        sliders.controls["model"].value = "gpt2"  # reads 1,024 tokens
        assert sliders.controls["context"].value == 1024
        assert sliders.result is not None


def test_the_range_of_the_tokens_is_the_plans():
    """The plan is asked apart: 8B on an L4, which nobody measured."""
    sliders = MemorySliders("llama-3.1-8b", gpu="l4", gpus=1, context=8192, requests=1)
    says = plan("llama-3.1-8b", "l4", tensor_parallel_size=1, max_model_len=8192).to_dict()
    low, high = says["kv_cache_tokens_low"], says["kv_cache_tokens_high"]
    assert f"{low:,} to {high:,} in vLLM's log (never measured)" in sliders.picture.value
