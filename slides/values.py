"""Every number on the slides: `{{name}}` in the deck is filled with values()[name], computed by `workshop`."""

from __future__ import annotations

import math

from drawings import guess, scale
from drawings.engine import limit_tokens_per_s, run
from drawings.memory import FILLED, filled_h100
from drawings.recorded import answers
from drawings.recorded import recorded as recorded_file
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import DTYPE_BYTES
from inference_planner.catalog.gpus import GIB
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.model.weights import active_parameters, parameters, weight_bytes
from inference_planner.split.communication import LINKS, traffic
from inference_planner.tables import rules

from workshop.client.logprobs import rows
from workshop.client.sampling import next_token_probabilities
from workshop.course.exercises.sets.e01_memory import TIGHT
from workshop.course.notebooks.nb07 import TONIGHT_S
from workshop.course.topics import abstracts, roofline, speculation
from workshop.course.widgets.xray.case import RECORDED
from workshop.engine import measured_runs as recorded
from workshop.engine import trace
from workshop.engine.log import read as read_log
from workshop.engine.planning import plan
from workshop.servers.local import TEACHING_FOLDER
from workshop.simulate.choices import ENOUGH

# What others measured and published: the only numbers here that are given, each with its source.
PUBLISHED = {  # slides of the Kempner Institute's workshop, 17 December 2024: "Speed of Inference"
    "then.70b": "50",
    "then.405b": "18–20",
    "then.when": "2024",
}
# what the course's notebooks need: README, "Needs"
SESSION = {"session.cpus": "1", "session.gb": "4"}
NODE_GPUS = 4
ABSTRACT_TOKENS = 512  # notebook 1: 400 of an abstract, 112 for the instructions and the label
LOG = recorded.DATA / "logs" / "llama-3.1-8b_vllm-0.32.0_h100.log"


def _models() -> dict[str, str]:
    out = {}
    for size, (billions, name) in rules.SIZES.items():
        m, key = load_model(name), size.lower()
        out |= {
            f"{key}.layers": f"{m.num_hidden_layers}",
            f"{key}.heads": f"{m.num_attention_heads}",
            f"{key}.kv_heads": f"{m.num_key_value_heads}",
            f"{key}.head_dim": f"{m.head_dim}",
            f"{key}.context": f"{m.max_position_embeddings:,}",
            f"{key}.weights_gb": f"{rules.weights_gb(billions, 'Float16'):.0f}",
            f"{key}.exact_gb": f"{weight_bytes(m) / 1e9:.1f}",
            f"{key}.exact_gib": f"{weight_bytes(m) / GIB:.1f}",
            f"{key}.table_kv_gib": f"{rules.kv_table()[size]} GiB",
            f"{key}.kv_full": f"{rules.kv_request_gib(m, m.max_position_embeddings):.2f}",
        }
    return out


def _memory() -> dict[str, str]:
    h100 = load_gpu("h100")
    p = filled_h100()
    bits = {
        32: DTYPE_BYTES["float32"],
        16: rules.BYTES["Float16"],
        8: rules.BYTES["Float8"],
        4: rules.BYTES["INT4"],
    }
    return {
        **{f"bits.{n}": f"{n}" for n in bits},
        **{f"bytes.{n}": f"{size:g}" for n, size in bits.items()},
        "h100.gb": f"{h100.marketing_gb}",
        "h100.gib": f"{h100.engine_gib:.1f}",
        "h100.seen_gb": f"{h100.engine_bytes / 1e9:.1f}",
        "gib.percent": f"{GIB / 1e9 - 1:.0%}",
        "table.tokens": f"{rules.REQUEST_TOKENS:,}",
        "70b.fp8_gb": f"{weight_bytes(load_model('llama-3.1-70b-fp8')) / 1e9:.1f}",
        "fill.model": "Llama 3.1 8B",
        "fill.name": FILLED["model"],
        "fill.usable": f"{p.requested_gib_per_gpu:.1f}",
        "fill.share": f"{p.requested_gib_per_gpu / h100.engine_gib:.0%}".removesuffix("%"),
        "fit.8b": f"{rules.SIZES['8B'][0] * bits[16]:g}",
        "fit.70b_8": f"{rules.SIZES['70B'][0] * bits[8]:g}",
        "fit.70b_4": f"{rules.SIZES['70B'][0] * bits[4]:g}",
        "fill.work": f"{sum(item.bytes for item in p.overheads) / 2**30:.1f}",
        "fill.kv_tokens": f"{p.kv_cache_tokens:,}",
        "fill.abstracts": f"{p.kv_cache_tokens // ABSTRACT_TOKENS:,}",
        "fill.max_len_flag": f"{p.deployment.settings.max_model_len}",
        "tight.requests": f"{TIGHT['requests']}",
        "tight.context": f"{TIGHT['context']:,}",
        "tight.gb": f"{load_gpu(TIGHT['gpu']).marketing_gb}",
        "8b.token_bytes": f"{kv_cache_bytes_per_token(load_model('llama-3.1-8b')):,}",
        **{f"{size.lower()}.billion": f"{rules.SIZES[size][0]}" for size in ("8B", "70B", "405B")},
        "story.count": f"{len(abstracts.load()):,}",
        "story.tenth": f"{len(abstracts.load()[::10])}",
        "story.tokens": f"{ABSTRACT_TOKENS}",
        "story.max_len": f"{p.deployment.settings.max_model_len:,}",
        "teaching.million": f"{parameters(load_model(TEACHING_FOLDER)) / 1e6:.0f}",
    }


def _parallel() -> dict[str, str]:
    nvlink, ib = LINKS["nvlink"], LINKS["infiniband-ndr"]
    split = plan(
        "llama-3.1-405b",
        "h100",
        gpus_per_node=8,
        nodes=2,
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        max_model_len=8192,
    )
    sent, prompt = (
        next(t for t in traffic(split.deployment, n) if t.what == "all-reduce") for n in (1, 8192)
    )
    return {
        "nvlink.pair": f"{nvlink.gb_s / (NODE_GPUS - 1):g}",
        "nvlink.both": f"{nvlink.gb_s * 2:g}",
        "ib.gb_s": f"{ib.gb_s:g}",
        "ib.gbit": f"{ib.gb_s * 8:g}",
        "nvlink.times_ib": _number(nvlink.gb_s / ib.gb_s),
        "405b.allreduce_count": f"{sent.count}",
        "405b.allreduce_kib": f"{sent.bytes_each / 1024:g}",
        "405b.allreduce_mib": f"{sent.count * sent.bytes_each / 2**20:.1f}",
        "405b.allreduce_prompt_gib": f"{prompt.count * prompt.bytes_each / GIB:.1f}",
        "405b.pp_gib": f"{split.weights_gib_per_gpu:.1f}",
        "falcon.heads": f"{load_model('falcon-7b').num_attention_heads}",
    }


def _number(value: float) -> str:
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return names[int(value)] if value == int(value) and value < len(names) else f"{value:.1f}"


def _speed() -> dict[str, str]:
    h100, h200, r = load_gpu("h100"), load_gpu("h200"), run("70b-tp4")
    return {
        "h200.bandwidth": f"{h200.bandwidth_gb_s / 1e3:g}",
        "h100.bandwidth": f"{h100.bandwidth_gb_s / 1e3:g}",
        "h200.more": f"{h200.bandwidth_gb_s / h100.bandwidth_gb_s:.1f}",
        "70b.single": f"{r['single_tok_s']:.0f}",
        "405b.single": f"{run('405b-fp8-tp4')['single_tok_s']:.0f}",
        "70b.tuned": f"{recorded.tuned('70b-tp4-best')['single_tok_s']:.0f}",
        "70b.small_kib": f"{load_model('llama-3.1-70b').hidden_size * 2 / 1024:g}",
        "70b.limit": f"{limit_tokens_per_s('70b-tp4'):.0f}",
        "70b.ttft_ms": f"{r['ttft_ms_32']:.0f}",
        "70b.tpot_ms": f"{1e3 / r['single_tok_s']:.1f}",
        "70b.batch256": f"{r['batch256_tok_s']:,}",
        "70b.batch_times": f"{r['batch256_tok_s'] / r['single_tok_s']:.0f}",
        "vllm.gpu": r["vllm_version"],
        "vllm.h100": run("h100_llama-3.1-8b_0.32")["vllm_version"],
        "vllm.cpu": f"vLLM {answers()['vllm_version'].split('+')[0]}",
    }


def _log() -> dict[str, str]:
    lines = LOG.read_text(encoding="utf-8").splitlines()

    def line(part: str) -> str:
        return next(text.split("] ", 1)[1] for text in lines if part in text)

    size, at_once = line("Maximum concurrency").split(
        " Maximum"
    )  # one line of the log is two of a slide
    return {
        "log.weights": line("Model loading took"),
        "log.available": line("Available KV cache memory"),
        "log.tokens": size,
        "log.concurrency": f"    Maximum{at_once}",
        "tonight.at_once": f"{read_log(LOG).kv_cache_tokens // ABSTRACT_TOKENS:,}",
        "tonight.fields": _number(len(abstracts.FIELDS)),
        "tonight.seconds": f"{TONIGHT_S:.0f}",
    }


def _others() -> dict[str, str]:
    from inference_planner.catalog import list_models

    oss, mixtral, qwen = (
        load_model("gpt-oss-120b"),
        load_model("mixtral-8x7b"),
        load_model("qwen3-30b-a3b"),
    )
    jamba, minicpm = load_model("jamba-v0.1"), load_model("minicpm-2b")
    names = {
        "oss": "gpt-oss 120B",
        "mixtral": "Mixtral 8×7B",
        "qwen": "Qwen3 30B-A3B",
        "deepseek": "DeepSeek V3, R1",
        "jamba": "Jamba v0.1",
        "minicpm": "MiniCPM 2B",
    }
    return {
        **{f"tiny.{key}": name for key, name in names.items()},
        "oss.window": f"{next(w for w in oss.layer_windows if w):,}",
        "mixtral.used": _number(mixtral.moe.experts_per_token),
        "mixtral.experts": f"{mixtral.moe.num_experts}",
        "qwen.active": f"{active_parameters(qwen) / 1e9:.1f}",
        "qwen.total": f"{parameters(qwen) / 1e9:.1f}",
        "jamba.attention": f"{len(jamba.attention_layers)}",
        "jamba.layers": f"{jamba.num_hidden_layers}",
        "minicpm.kv": f"{kv_cache_bytes_per_token(minicpm) / 1024:.0f}",
        "catalog.count": f"{len(list_models())}",
    }


def _slide_example() -> dict[str, str]:
    """The worked example of a 70B server, from the recorded slide."""
    import json

    data = json.loads(
        (recorded.DATA / "distributions" / "llama_70b_slide.json").read_text(encoding="utf-8")
    )
    token_rows, out = rows(data, k=1), {}
    named = {"20": "20", "49": "49", "-minute": "minute", "San": "san", "Question": "question"}
    for alternative in (alternative for row in token_rows for alternative in row.alternatives):
        key = f"slide.{named[alternative.token]}"
        out |= {
            key: f"{alternative.logprob}",
            f"{key}_short": f"{alternative.logprob:.2f}",
            f"{key}_rank": f"{alternative.rank}",
            f"{key}_odds": f"{round(1 / alternative.probability, -3):,.0f}",
            f"{key}_p": f"{alternative.probability:.1%}"
            if alternative.probability > 0.001
            else f"{alternative.probability:.2%}",
        }
    return {
        **out,
        "slide.text": "".join(row.token for row in token_rows if row.part == "completion"),
    }


def _prompts() -> dict[str, str]:
    """Two prompts for the same abstracts, recorded."""
    outcome = recorded_file("prompts")
    most, times = next(iter(outcome["long"]["labels"].items()))
    return {
        "prompts.rows": f"{outcome['rows']}",
        "prompts.short_right": f"{outcome['short']['right']}",
        "prompts.most": most,
        "prompts.most_times": f"{times}",
        "prompts.all_right": f"{outcome['all']['right'] / outcome['all']['rows']:.0%}",
        "prompts.confidence": f"{outcome['long']['mean_confidence']:.0%}",
    }


def _toys() -> dict[str, str]:
    """The answers of exercises that are computed by hand."""
    probabilities = {"city": 0.5, "port": 0.2, "town": 0.15, "lake": 0.1, "cat": 0.05}
    logprobs = {token: math.log(p) for token, p in probabilities.items()}
    left = next_token_probabilities(logprobs, temperature=2, top_p=0.8)
    return {
        "toy.kept": _number(len(left)),
        "toy.confidence": f"{math.exp(-0.02 - 0.03 - 1.20):.2f}",
    }


def _trace() -> dict[str, str]:
    """The recorded run of the X-rays."""
    steps = trace.Trace(RECORDED).more()
    arrived = {name: tokens for step in steps for name, tokens in step.arrived}
    hits = [
        request.prefix_hit_tokens
        for step in steps
        for request in step.requests
        if request.prefix_hit_tokens
    ]
    return {
        "trace.budget": f"{steps[0].budget}",
        "trace.blocks": f"{steps[0].num_blocks}",
        "trace.block": f"{steps[0].block_size}",
        "trace.requests": f"{len(arrived)}",
        "trace.long": f"{max(arrived.values())}",
        "trace.found": f"{hits[0]}",
        "trace.found_blocks": _number(hits[0] / steps[0].block_size),
    }


def _day_two() -> dict[str, str]:
    critical, recorded_capacity, m = (
        roofline.critical_tokens(scale.step_deployment()),
        recorded_file("capacity"),
        load_model("qwen3-30b-a3b"),
    )
    rates = [
        max(int(rate) for rate, share in rows.items() if share >= ENOUGH)
        for rows in recorded_capacity["shares"].values()
    ]
    low, high = (recorded_capacity["load"][key] for key in ("prompt", "output"))
    alone, drafted = (
        recorded.tuned(f"8b-{name}") for name in ("no-guesses", "draft-1b-accept-2.8")
    )
    return {
        **_trace(),
        "step.critical": f"{critical:.0f}",
        "guess.accepted": f"{guess.ACCEPTED:.0%}",
        "guess.tokens": f"{guess.tokens_a_step(guess.ACCEPTED, 3):.1f}",
        "guess.alone": f"{guess.speedup(1, 3):.1f}",
        "guess.many": f"{guess.speedup(256, 5):.1f}",
        "guess.measured": f"{drafted['batch1_decode_tok_s'] / alone['batch1_decode_tok_s']:.2f}",
        "guess.launch": f"{load_model(guess.DRAFT).num_hidden_layers * speculation.DRAFT_LAYER_MS:.0f} ms",
        "guess.gpus": f"{guess.SPLIT} × H100",
        "experts.count": f"{m.moe.num_experts}",
        "experts.used": _number(m.moe.experts_per_token),
        "experts.layers": f"{m.num_hidden_layers}",
        "capacity.one": f"{rates[0]}",
        "capacity.three": f"{rates[-1]}",
        "capacity.prompts": f"{low[0]} to {low[1]:,}",
        "capacity.answers": f"{high[0]} to {high[1]}",
        "capacity.slo": recorded_capacity["load"]["slo"]
        .replace("=", " ≤ ")
        .replace("ms", " ms")
        .replace("1s", "1 s")
        .replace(",", ", "),
        "capacity.enough": f"{ENOUGH:.0%}",
        "chat.tokens": f"{recorded_file('chat')['json']['usage']['completion_tokens']}",
    }


def values() -> dict[str, str]:
    """Return what `{{name}}` stands for, as text."""
    return {
        **PUBLISHED,
        **SESSION,
        **_models(),
        **_memory(),
        **_parallel(),
        **_speed(),
        **_log(),
        **_others(),
        **_slide_example(),
        **_day_two(),
        **_prompts(),
        **_toys(),
        "recorded.date": answers()["date"],
        "recorded.later": recorded_file("chat")["date"],
    }
