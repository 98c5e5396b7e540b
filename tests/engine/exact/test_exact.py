"""What vLLM's own classes say: recorded answers, the worker's protocol, estimates, and what is refused."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import exact as benchmark
import pytest
from inference_planner.answer import builds, report
from inference_planner.answer.command import Unservable, check_starts
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.config import Exact
from inference_planner.catalog.estimate import unknown_part
from inference_planner.catalog.families import FAMILIES
from inference_planner.model import kv_cache
from inference_planner.model.weights import layer_weights, tensor_bytes
from inference_planner.tables import hardware
from supernova import NEW, folder

from workshop.engine.exact import ask, store
from workshop.engine.planning import plan
from workshop.errors import BadInput

CATALOG = benchmark.recorded()
BY_DIGEST = {builds.digest(m.raw): m for m in map(load_model, list_models())}
# no formulas
RECORDED = {entry["name"]: entry for entry in CATALOG if entry["architecture"] not in FAMILIES}


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return a function that puts an interpreter in vLLM's place: it answers every job with the same line."""
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))

    def put(answer: dict | str) -> Path:
        script, jobs_file = tmp_path / "python", tmp_path / "asked"
        line = answer if isinstance(answer, str) else json.dumps(answer)
        script.write_text(
            f"#!/bin/sh\nwhile read -r job; do echo \"$job\" >> '{jobs_file}'; cat '{script}.answer'; done\n"
        )
        Path(f"{script}.answer").write_text(line + "\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("WORKSHOP_VLLM_PYTHON", str(script))
        return jobs_file

    return put


def answer_of(entry: dict, tp: int = 1, pp: int = 1) -> dict:
    return {"vllm": "0.32.0", **next(b for b in entry["builds"] if (b["tp"], b["pp"]) == (tp, pp))}


class TestRecorded:
    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_sparse_latent_in_fp8_keeps_scales_and_positions_and_the_keys_of_its_indexer(
        self, recorded, monkeypatch
    ):
        """deepseek-v3.2-nvfp4's record, whose checkpoint wants an FP8 cache: 61 layers of 656 + 132 bytes."""
        monkeypatch.setattr(ask, "python", lambda: "")
        if not recorded:
            monkeypatch.setattr(builds, "records", dict)
        sparse, same = (
            plan(name, "h200", kv_cache_dtype=kv, max_model_len=8192, tensor_parallel_size=8)
            for name, kv in (("deepseek-v3.2", "fp8"), ("deepseek-v3.2-nvfp4", "auto"))
        )
        assert sparse.kv_bytes_per_token == same.kv_bytes_per_token == 48068
        per_gib = [p.kv_cache_tokens / p.available_kv_gib_per_gpu for p in (sparse, same)]
        assert per_gib[0] == pytest.approx(per_gib[1], rel=0.02)

    # "Model loading took" on an H100: issue 18's figures for these two, in GiB
    def test_weights_are_what_vllm_printed_on_a_gpu(self):
        for name, printed_gib in [("qwen3-32b", 61.03), ("nemotron-nano-9b-v2", 16.58)]:
            stages = answer_of(next(entry for entry in CATALOG if entry["name"] == name))["stages"]
            assert stages[0]["loaded_bytes"] / 2**30 == pytest.approx(printed_gib, rel=5e-4), name

    # layers that keep a cache: 4 of attention and 27 of Mamba; 12 of attention and 36 of a gated delta net (issue 18)
    def test_hybrid_layers_are_counted_by_kind(self):
        for name, attention, states in [
            ("nemotron-nano-9b-v2", 4, 27),
            ("qwen3-next-80b-a3b-fp8", 12, 36),
        ]:
            groups = answer_of(RECORDED[name])["kv_cache"]["groups"]
            assert (
                sum(sum(g["layers"]) for g in groups if g["kind"] == "FullAttentionSpec")
                == attention
            ), name
            assert sum(sum(g["layers"]) for g in groups if g["kind"] == "MambaSpec") == states, name

    def test_what_was_refused_is_read_once(self):
        """glm-4.1v-9b's record: its class cannot be built for TP 8 ("12 is not divisible by 8")."""
        first, second = (
            builds.with_records(plan("glm-4.1v-9b", "h200").deployment).model.exact.refused
            for _ in range(2)
        )
        assert first is second and first == ((8, 1, "AssertionError: 12 is not divisible by 8"),)

    def test_models_of_this_year_are_planned_without_vllm(self, monkeypatch):
        monkeypatch.setattr(ask, "python", lambda: "")
        for name in RECORDED:
            for build in RECORDED[name]["builds"]:
                if build["pp"] > 1:
                    continue
                p = plan(name, "b300", tensor_parallel_size=build["tp"], max_model_len=4096)
                # nobody measured a B300
                assert (p.sizes_from, p.exact, p.source) == ("recorded", False, "0.32.0"), name
                assert p.weights_gib_per_gpu == pytest.approx(
                    build["stages"][0]["loaded_bytes"] / 2**30, abs=0.04
                ), name
                pool = build["kv_cache"]["pool_bytes_per_block"][0]
                if p.deployment.model.mla:  # sparse ones in FP8 have no scales on a B300
                    pool = pool * p.kv_bytes_per_token // build["kv_cache"]["bytes_per_token"]
                assert p.num_gpu_blocks == (
                    int(p.available_kv_gib_per_gpu * 2**30) // pool if p.fits else 0
                ), name

    def test_blocks_of_a_request_are_those_of_vllms_own_function(self):
        for name in RECORDED:
            m = load_model(name)
            for split in RECORDED[name]["builds"]:
                cache, recorded_model = (
                    split["kv_cache"],
                    replace(m, exact=Exact("recorded", "0.32.0", (builds.built(split),))),
                )
                lengths, starts = (
                    (cache["max_model_len"], cache["max_in_flight_tokens"]),
                    tuple(range(split["pp"])),
                )
                lay = kv_cache.layout(recorded_model, split["tp"], "auto", *lengths, starts=starts)
                assert kv_cache.blocks_per_request(lay) == cache["blocks_per_request"], name
                assert [g.blocks_per_request for g in lay.groups] == [
                    g["blocks_per_request"] for g in cache["groups"]
                ], name

    def test_a_stage_of_a_pipeline_holds_what_vllm_gives_it(self, monkeypatch):
        monkeypatch.setattr(ask, "python", lambda: "")
        entry = RECORDED["nemotron-nano-9b-v2"]
        p = plan("nemotron-nano-9b-v2", "h200", tensor_parallel_size=1, pipeline_parallel_size=2)
        assert [r.weight_bytes for r in p.ranks] == [
            s["loaded_bytes"] for s in answer_of(entry, 1, 2)["stages"]
        ]

    def test_quantizing_keeps_the_number_of_weights_but_not_their_bytes(self, monkeypatch):
        monkeypatch.setattr(ask, "python", lambda: "")
        m = load_model("smollm3-3b")
        assert (
            plan(m, "h200", quantization="fp8").weights_gib_per_gpu
            < 0.65 * plan(m, "h200").weights_gib_per_gpu
        )


class TestFormulas:
    def test_formulas_say_what_vllms_classes_say(self):
        for entry in [e for e in CATALOG if e["architecture"] in FAMILIES]:
            m = BY_DIGEST[entry["digest"]]
            for split, what, ours, theirs in benchmark.compared(entry, m):
                assert benchmark.same(entry, what, ours, theirs), (
                    f"{entry['name']}, {split}, {what}: {ours:,} against {theirs:,}"
                )

    def test_every_model_that_cannot_be_estimated_is_in_the_record(self):
        built = {
            entry["digest"]
            for entry in CATALOG
            if entry["builds"] or entry["architecture"] in FAMILIES
        }
        needed = {
            digest
            for digest, model in BY_DIGEST.items()
            if not (model.architecture in FAMILIES or model.derived_from)
            and unknown_part(model.raw, has_checkpoint=False)
        }
        assert len(needed) > 30 and built >= needed


class TestWorker:
    def test_its_answer_is_the_plan_and_is_asked_for_once(self, tmp_path, answers):
        jobs_file = answers(answer_of(RECORDED["smollm3-3b"]))
        for length in (4096, 8192):
            p = plan(folder(tmp_path), "h200", exact=True, max_model_len=length)
            assert (p.sizes_from, p.exact, p.source) == ("exact", True, "0.32.0")
            assert p.weights_gib_per_gpu == pytest.approx(5.76, abs=0.01)
        assert len(jobs_file.read_text().splitlines()) == 1
        assert json.loads(jobs_file.read_text())["config"] == NEW

    def test_where_there_are_no_formulas_it_is_asked_without_being_told_to(self, tmp_path, answers):
        jobs_file = answers(answer_of(RECORDED["smollm3-3b"]))
        assert plan(folder(tmp_path), "h200").sizes_from == "exact"
        assert plan("llama-3.1-8b", "h200").sizes_from == "formulas"
        assert len(jobs_file.read_text().splitlines()) == 1

    def test_a_cut_answer_on_disk_is_asked_for_again(self, tmp_path, answers):
        jobs_file = answers(answer_of(RECORDED["smollm3-3b"]))
        plan(folder(tmp_path), "h200", exact=True)
        for path in store.answers_folder().iterdir():
            path.write_text(path.read_text()[:100])
        plan(folder(tmp_path), "h200", exact=True)
        assert len(jobs_file.read_text().splitlines()) == 2

    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (
                "Please pass the argument `trust_remote_code=True` to allow custom code",
                "code of the model's own",
            ),
            (
                "model type `supernova` but Transformers does not recognize this architecture",
                "model_type supernova",
            ),
            (
                "Model architectures ['SuperNova'] are not supported for now.",
                "does not know the architecture",
            ),
            ("ValueError: it is Sunday\nand a trace", "ValueError: it is Sunday"),
        ],
    )
    def test_what_vllm_refuses_is_one_sentence_with_exact_and_an_estimate_without(
        self, tmp_path, answers, error, sentence
    ):
        answers({"error": error, "vllm": "0.32.0"})
        with pytest.raises(BadInput, match=sentence) as refused:
            plan(folder(tmp_path), "h200", exact=True)
        assert "\n" not in str(refused.value)
        p = plan(folder(tmp_path), "h200")
        assert p.sizes_from == "estimate" and any(sentence in reason for reason in p.reasons)

    def test_what_vllm_has_no_class_for_gets_no_command_and_no_tick(self, tmp_path, answers):
        model_folder = folder(tmp_path)
        answers(
            {
                "error": "Model architectures ['SuperNova'] are not supported for now.",
                "vllm": "0.32.0",
            }
        )
        p = plan(model_folder, "h200")
        text, data = report.plan_text(p), json.loads(report.plan_json(p))
        assert p.fits and not p.starts
        assert "would fit" in text and "✓" not in text and "vllm serve" not in text
        assert data["command"] == "" and data["kv_cache_tokens"]
        assert hardware.smallest(model_folder, "h200", make_plan=plan).reason.startswith(
            "vLLM 0.32.0 cannot build"
        )
        with pytest.raises(Unservable, match="cannot build"):
            check_starts(plan(model_folder, "h200"))
        answers("no answer")
        other = plan(model_folder, "h200", max_num_seqs=64, kv_cache_dtype="fp8")
        assert other.starts and "✓" in report.plan_text(other)

    @pytest.mark.parametrize("exact_setting", [None, True])
    def test_a_model_without_a_kv_cache_is_one_sentence(self, tmp_path, answers, exact_setting):
        empty = {"groups": [], "pool_bytes_per_block": [0], "bytes_per_token": 0}
        # what vLLM 0.32.0 says of BertModel
        answers({**answer_of(RECORDED["smollm3-3b"]), "kv_cache": empty})
        with pytest.raises(BadInput, match="keeps no KV cache"):
            plan(folder(tmp_path), "h200", exact=exact_setting)

    @pytest.mark.parametrize("answer", ["", "[1", "null"])
    def test_a_process_that_says_nothing_of_use_is_one_sentence(self, tmp_path, answers, answer):
        answers(answer)
        with pytest.raises(BadInput, match="without an answer"):
            plan(folder(tmp_path), "h200", exact=True)

    def test_one_that_never_answers_is_ended_and_the_next_question_gets_a_new_one(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(ask, "ANSWER_S", 0.3)
        once = tmp_path / "python"
        once.write_text(
            f"#!/bin/sh\nread -r job\ntest -e '{once}.asked' && echo '{{}}' && exit\n: > '{once}.asked'\nexec sleep 60\n"
        )
        once.chmod(0o700)
        monkeypatch.setenv("WORKSHOP_VLLM_PYTHON", str(once))
        with ask.ExactWorker() as worker:
            assert "ended after" in worker.build({})["error"] and worker.build({}) == {}

    def test_an_interpreter_that_is_not_there_is_one_sentence(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("WORKSHOP_VLLM_PYTHON", str(tmp_path / "none"))
        with pytest.raises(BadInput, match="none ended without an answer"):
            plan(folder(tmp_path), "h200", exact=True)

    def test_without_vllm_exact_says_what_is_lacking(self, tmp_path, monkeypatch):
        monkeypatch.setattr(ask, "python", lambda: "")
        with pytest.raises(BadInput, match="no vLLM"):
            plan(folder(tmp_path), "h200", exact=True)

    def test_a_home_that_cannot_be_written_only_costs_the_next_time(self, tmp_path, answers):
        answers(answer_of(RECORDED["smollm3-3b"]))
        (tmp_path / "home").write_text(
            "a file where the folder was to be: root cannot write there either"
        )
        assert plan(folder(tmp_path), "h200", exact=True).exact


def test_a_latent_in_fewer_bits_is_unpacked_once_for_decoding():
    """Found by DeepSeek V3.2 with 8 layers on an H200 (docs/gpu.md): W_UK and W_UV in 16 bit, 32 MiB a layer."""
    v3, lite = load_model("deepseek-v3"), load_model("deepseek-v2-lite")
    packed, plain = (
        next(
            tensor_bytes(m, w, 0, 2) for w in layer_weights(m, 0) if w.name == "self_attn.kv_b_proj"
        )
        for m in (v3, lite)
    )
    assert packed[-1] == 16 << 20 and len(plain) == 1  # on each of two ranks


def test_an_output_layer_beside_the_language_model_is_no_encoder():
    """Muse-Glimmer's lm_head is no part of its language_model: 202,048 × 6,656 in 16 bit."""
    text = builds.with_records(plan("muse-glimmer-30b", "b300").deployment).model.exact.of(1, 1)
    assert not any(text.encoder_bytes)
    images = builds.with_records(plan("qwen3-vl-8b", "b300").deployment).model.exact.of(1, 1)
    assert images.encoder_bytes[0] > 2**30 / 2


def test_a_model_without_formulas_is_planned_from_its_record():
    """A plan then asks no vLLM, which takes half a minute."""
    for name in [
        "gemma-4-e2b",
        "gemma-4-12b",
        "qwen3.5-4b",
        "ministral-3-14b",
        "glm-4.5",
        "glm-4.1v-9b",
    ]:
        assert plan(name, "b300:8").sizes_from == "recorded", name
