"""Multimodal models: what the encoder takes in vLLM's profile run, against logs and measured runs."""

import json
import time

import pytest
from click.testing import CliRunner
from inference_planner import plan
from inference_planner.answer.report import plan_json, plan_text
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.architectures import is_multimodal, keeps_no_cache, pooling_of
from inference_planner.catalog.read import from_dict
from inference_planner.catalog.tower import tower_weights
from inference_planner.errors import BadInput
from inference_planner.split.encoders import encoder, encoder_run, limits
from published_configs import published

from workshop.cli.plan.plan import command

GIB = 1 << 30

QWEN_7B = published("qwen2.5-vl-7b")
QWEN3_EMBEDDING = published("qwen3-embedding-8b")


def folder(tmp_path, config, name):
    path = tmp_path / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def available_gib(p):
    return p.fit.available[p.fit.tightest] / GIB


def test_the_video_of_qwen_2_5_vl_7b_peaks_where_an_h100_said():
    # measured with 0.32.0: 4,599,587,840 bytes above what stood before the profile run, for one video of 32,768 tokens
    model = from_dict(QWEN_7B, name="qwen2.5-vl-7b")
    settings = plan("qwen2.5-7b", "h100", max_model_len=32768).deployment.settings
    run = encoder_run(model, settings, 1)
    assert (run.modality, run.items, run.tokens) == ("video", 1, 32768)
    assert run.peak_bytes == pytest.approx(4_599_587_840, rel=0.005)
    # 739,197,952 stood there, and 680,656,896 are the tables of 1,024 requests
    assert run.buffer_bytes == pytest.approx(739_197_952 - 680_656_896, rel=0.005)


def test_qwen3_vl_30b_on_four_3090_keeps_the_cache_that_its_log_says():
    # GPU logs of 0.11.0: 2.31 GiB; without the encoder the plan said 4.95
    p = plan(
        "qwen3-vl-30b-a3b",
        "rtx-3090",
        gpus_per_node=4,
        tensor_parallel_size=4,
        max_model_len=65536,
        gpu_memory_utilization=0.9,
        vllm_version="0.11.0",
    )
    assert available_gib(p) == pytest.approx(2.31, abs=0.25)


def test_an_encoder_costs_what_five_starts_on_a_5090_said():
    # Qwen3.6-35B-A3B NVFP4: 4.88 GiB with images, 6.44 without; the steps of those starts are not known
    settings = {
        "tensor_parallel_size": 1,
        "max_model_len": 32768,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 4,
        "vllm_version": "0.25.1",
    }
    sees = plan("qwen3.6-35b-a3b-nvfp4", "rtx-5090", **settings)
    blind = plan("qwen3.6-35b-a3b-nvfp4", "rtx-5090", **settings, language_model_only=True)
    no_items = plan(
        "qwen3.6-35b-a3b-nvfp4",
        "rtx-5090",
        **settings,
        limit_mm_per_prompt={"image": 0, "video": 0},
    )
    assert available_gib(blind) - available_gib(sees) == pytest.approx(6.44 - 4.88, abs=0.2)
    assert available_gib(no_items) == available_gib(blind)


def test_as_many_items_are_encoded_as_logs_say():
    for model, tokens, modality, count in [
        # "a budget of 16384 tokens, and profiled with 6 video items", "8192 … with 3 video items" (Gemma 4)
        ("gemma-4-26b-a4b", 16384, "video", 6),
        ("gemma-4-26b-a4b", 8192, "video", 3),
        # "16384 tokens, and profiled with 1 image items" (Qwen3.6-35B-A3B)
        ("qwen3.6-35b-a3b-nvfp4", 8192, "image", 1),
    ]:
        p = plan(model, "h200", tensor_parallel_size=1, max_num_batched_tokens=tokens)
        run = encoder_run(p.deployment.model, p.deployment.settings, 1)
        assert (run.modality, run.items) == (modality, count), (model, tokens)


def test_images_without_videos_are_as_many_as_a_log_says():
    # Gemma 4 with {"image": 8, "video": 0}: 29 image items of a budget of 8,192 tokens
    settings = {"max_num_batched_tokens": 8192, "limit_mm_per_prompt": "image=8,video=0"}
    p = plan("gemma-4-26b-a4b", "h200", tensor_parallel_size=1, **settings)
    run = encoder_run(p.deployment.model, p.deployment.settings, 1)
    assert (run.modality, run.items) == ("image", 29)
    assert """--limit-mm-per-prompt '{"image": 8, "video": 0}'""" in p.command


def test_mistral_small_weighs_what_its_log_says_and_has_two_images_a_batch():
    # Mistral-Small-3.2-24B, the same sizes: 44.76 GiB (llm-d-planner's measured table)
    p = plan(
        from_dict(published("mistral-small-3.1-24b"), name="mistral-small"),
        "h100",
        tensor_parallel_size=1,
    )
    assert p.weights_gib_per_gpu == pytest.approx(44.76, abs=0.02)
    assert encoder_run(p.deployment.model, p.deployment.settings, 1).items == 2


def test_gemma_3_27bs_published_config_is_planned_as_multimodal_and_says_so():
    p = plan(
        from_dict(published("gemma-3-27b-it"), name="gemma-3-27b-it"), "h200", max_model_len=8192
    )
    text = plan("gemma-3-27b", "h200", max_model_len=8192)
    assert any("It is multimodal" in reason for reason in p.reasons)
    # the catalog has its text model, and its command must not load the encoder
    assert any("published with an encoder" in reason for reason in text.reasons)
    assert "--language-model-only" in text.command
    assert "encoder" not in {item.name for item in text.overheads}
    # 27.4 billion parameters, of which 0.42 are the encoder's
    vision = sum(w.elements() for w in tower_weights(p.deployment.model))
    assert vision == pytest.approx(0.42e9, rel=0.02)
    assert p.overhead_gib_per_gpu > text.overhead_gib_per_gpu


def test_molmo_is_as_large_as_its_checkpoint():
    # 8.02 billion parameters (its model card), in 16 bits
    p = plan(from_dict(published("molmo-7b-d"), name="molmo-7b-d"), "h100", tensor_parallel_size=1)
    assert p.weights_gib_per_gpu == pytest.approx(8.02e9 * 2 / GIB, rel=0.02)


def test_no_multimodal_model_is_planned_as_text_without_a_word():
    for name in list_models():
        model = load_model(name)
        if not is_multimodal(model.architecture):
            continue
        p = plan(name, "h200", max_model_len=4096)
        assert any("multimodal" in reason for reason in p.reasons), name
        vision_encoder = encoder(model, 4096)
        if vision_encoder:
            assert {"input embeddings", "encoder"} <= {item.name for item in p.overheads}, name


def test_a_model_with_an_encoder_that_has_no_sizes_is_refused_or_said_to_be_incomplete():
    config = {**QWEN_7B, "architectures": ["Ovis2_5"], "model_type": "ovis2_5"}
    config.pop("vision_config")
    with pytest.raises(BadInput, match="encoder of images or sound"):
        plan(from_dict(config, name="ovis"), "h100")


def test_limits_are_read_as_vllm_takes_them():
    for text, counts in [
        ('{"image": 4, "video": 0}', (("image", 4), ("video", 0))),
        ('{"video": {"count": 1, "num_frames": 32}}', (("video", 1),)),
        ("image=4,video=0", (("image", 4), ("video", 0))),
        ("image=4 audio=1", (("audio", 1), ("image", 4))),
        (None, ()),
    ]:
        assert limits(text) == counts, text


def test_wrong_limits_are_refused_with_an_example():
    for text in ["4", "image", "image=-1", "[1]", '{"image": "many"}', '{"taste": 1}']:
        with pytest.raises(BadInput, match="limit_mm_per_prompt") as refused:
            limits(text)
            pytest.fail(f"{text} was taken")
        assert "image=4,video=0" in refused.value.remedy, text


def test_a_text_model_has_no_limits():
    with pytest.raises(BadInput, match="reads text alone"):
        plan("llama-3.1-8b", "h100", language_model_only=True)


def test_the_command_line_takes_the_settings_and_passes_them_on():
    for flags in [["--language-model-only"], ["--limit-mm-per-prompt", '{"image": 0, "video": 0}']]:
        arguments = [
            "qwen3-vl-8b",
            "--gpu",
            "h100",
            "--max-model-len",
            "8K",
            "--no-exact",
            "--json",
        ]
        result = CliRunner().invoke(command, [*arguments, *flags])
        data = json.loads(result.output)
        assert result.exit_code == 0 and flags[0] in data["command"], flags
        assert "encoder" not in {item["name"] for item in data["overheads"]}, flags


def test_a_multimodal_plan_takes_about_as_long_as_another():
    plan("qwen3-vl-8b", "h100", max_model_len=4096)
    start = time.perf_counter()
    for length in range(4096, 4096 + 20):
        plan("qwen3-vl-8b", "h100", max_model_len=length)
    assert (time.perf_counter() - start) / 20 < 0.1


# Models that generate no text


def test_a_model_that_does_not_generate_gets_no_speed(tmp_path):
    for config, name, reason in (
        (published("bge-m3"), "bge-m3", "no KV cache"),
        (QWEN3_EMBEDDING, "Qwen3-Embedding-8B", "pooling model"),
    ):
        p = plan(folder(tmp_path, config, name), "h100")
        text = plan_text(p)
        data = json.loads(plan_json(p))
        assert p.fits and reason in " ".join(text.split()), name
        assert "tokens/s" not in text and "at once" not in text.split("Why")[0], name
        assert data["single_stream_tokens_per_s"] is None, name
        assert data["learners_at_once"] is None and data["pooling"] == "vectors", name


def test_bge_m3_is_as_large_as_its_checkpoint_and_keeps_no_cache(tmp_path):
    # 568 million parameters (its model card)
    p = plan(folder(tmp_path, published("bge-m3"), "bge-m3"), "h100")
    assert p.weights_gib_per_gpu == pytest.approx(568e6 * 2 / GIB, rel=0.01)
    assert (p.kv_cache_tokens, p.max_concurrency, p.kv_bytes_per_token) == (0, 0.0, 0)
    assert p.advice == []


def test_the_files_of_sentence_transformers_make_a_pooling_model(tmp_path):
    # get_pooling_config of vLLM 0.32.0
    path = folder(tmp_path, QWEN3_EMBEDDING, "my-model")
    assert plan(path, "h100").deployment.model.pooling == ""
    (path / "modules.json").write_text("[]")
    assert plan(path, "h100").deployment.model.pooling == "vectors"


def test_what_a_model_computes_follows_from_its_class_or_its_name():
    for architecture, name, what in [
        ("BertForSequenceClassification", "bge-reranker-base", "scores"),
        ("Qwen3ForSequenceClassification", "any", "scores"),
        ("Qwen3ForCausalLM", "Qwen3-Reranker-4B", "scores"),
        ("Qwen2ForRewardModel", "any", "vectors"),
        ("ModernBertModel", "any", "vectors"),
        ("Qwen3ForCausalLM", "qwen3-8b", ""),
        ("Gemma3nForConditionalGeneration", "gemma-3n-e4b", ""),
    ]:
        assert pooling_of(architecture, name) == what, (architecture, name)


# The models of the catalog that generate no text, and what they compute, by their model cards
POOLING = {
    "bge-large-en-v1.5": "vectors",
    "bge-m3": "vectors",
    "bge-reranker-v2-m3": "scores",
    "e5-mistral-7b": "vectors",
    "embeddinggemma-300m": "vectors",
    "jina-embeddings-v5-text-small": "vectors",
    "multilingual-e5-large": "vectors",
    "nomic-embed-text-v1.5": "vectors",
    "qwen3-embedding-0.6b": "vectors",
    "qwen3-embedding-4b": "vectors",
    "qwen3-embedding-8b": "vectors",
    "qwen3-reranker-0.6b": "scores",
    "qwen3-reranker-4b": "scores",
    "qwen3-reranker-8b": "scores",
    "qwen3-vl-embedding-2b": "vectors",
    "skywork-reward-v2-llama-3.1-8b": "scores",
}
# Those whose attention looks both ways
WITHOUT_CACHE = {"BertModel", "NomicBertModel", "XLMRobertaModel"}
WITHOUT_CACHE |= {"XLMRobertaForSequenceClassification"}


def test_no_generating_model_of_the_catalog_is_taken_for_a_pooling_model():
    for name in list_models():
        model = load_model(name)
        assert model.pooling == POOLING.get(name, ""), name
        assert keeps_no_cache(model.architecture) == (model.architecture in WITHOUT_CACHE), name


# Settings of a config


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_yarn_by_hf_overrides_allows_what_each_version_of_vllm_allows():
    # Qwen3-8B has 40,960 positions; pull request 56446 ended the multiplication
    settings = {"max_model_len": 131072, "hf_overrides": {"rope_scaling": YARN}}
    assert (
        plan(
            "qwen3-8b", "h100", **settings, vllm_version="0.25.1"
        ).deployment.settings.max_model_len
        == 131072
    )
    with pytest.raises(BadInput, match="40960"):
        plan("qwen3-8b", "h100", **settings)
    both = {"rope_scaling": YARN, "max_position_embeddings": 131072}
    p = plan("qwen3-8b", "h100", max_model_len=131072, hf_overrides=json.dumps(both))
    assert p.deployment.settings.max_model_len == 131072 and "--hf-overrides" in p.command


def test_a_config_with_yarn_keeps_its_own_positions_in_the_default_version(tmp_path):
    path = folder(tmp_path, {**QWEN3_EMBEDDING, "rope_scaling": YARN}, "long")
    assert plan(path, "h100").deployment.settings.max_model_len == 40960
    assert plan(path, "h100", vllm_version="0.25.1", max_model_len=131072).fits


def test_overrides_that_are_no_object_are_refused():
    for overrides in ["{", "[1]", '"text"']:
        with pytest.raises(BadInput, match="hf_overrides"):
            plan("qwen3-8b", "h100", hf_overrides=overrides)
            pytest.fail(f"{overrides} was taken")


def test_json_has_the_memory_that_the_text_names_where_no_request_fits():
    p = plan("qwen2.5-7b", "l4", tensor_parallel_size=1, max_model_len=32768, max_num_seqs=1024)
    longer = plan("llama-3.1-8b", "l4", tensor_parallel_size=1)
    assert not longer.fit.holds_a_request
    assert f"{longer.available_kv_gib_per_gpu:.2f} GiB are left" in " ".join(longer.reasons)
    assert p.available_kv_gib_per_gpu > 0


def test_a_model_that_generates_no_text_is_advised_fewer_gpus_without_tokens_per_second():
    p = plan("jina-embeddings-v5-text-small", "h100", tensor_parallel_size=2)
    (line,) = [line for line in p.advice if "are enough" in line]
    assert line.startswith("1 × ") and "tokens/s" not in line


def test_images_for_a_text_model_of_the_catalog_are_planned_or_what_is_missing_is_named():
    """google/gemma-3-27b-it's vision_config is in the catalog; zai-org/GLM-4.5V's is not."""
    text = plan("gemma-3-27b", "h100", tensor_parallel_size=2)
    images = plan("gemma-3-27b", "h100", tensor_parallel_size=2, limit_mm_per_prompt="image=4")
    assert images.fits and images.weights_gib_per_gpu > text.weights_gib_per_gpu
    assert "--language-model-only" not in images.command
    for model, hub_id in (
        ("gemma-4-12b", "google/gemma-4-12B-it"),
        ("glm-4.5v", "zai-org/GLM-4.5V"),
    ):
        with pytest.raises(BadInput, match=f"hf download {hub_id} config.json"):
            plan(model, "h200", gpus_per_node=8, limit_mm_per_prompt="image=4")
            pytest.fail(f"{model} was taken")
