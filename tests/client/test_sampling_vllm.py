"""Our steps against vLLM's own operations, on tensors: the reference is the installed vLLM, not our reading of it."""

from __future__ import annotations

import math
import random
from itertools import accumulate, product

import pytest
from cases import ties_of_top_p
from needs import SEED

from workshop.client.sampling import Pipeline, pipeline
from workshop.client.sampling_settings import PARAMETERS, Settings

torch = pytest.importorskip("torch")
VOCABULARY = 400
CASES = [  # chosen so that every parameter is at work at least twice, alone and with others
    Settings(temperature=0.7),
    Settings(temperature=1.7),
    Settings(temperature=0.004),
    Settings(top_k=1),
    Settings(top_k=7),
    Settings(top_k=39, temperature=1.3),
    Settings(top_p=0.5),
    Settings(top_p=0.9, temperature=1.5),
    Settings(top_p=0.9, temperature=0.5),
    Settings(top_k=20, top_p=0.8),
    Settings(min_p=0.1),
    Settings(min_p=0.05, temperature=1.8),
    Settings(min_p=0.02, top_k=9, top_p=0.7),
    Settings(frequency_penalty=1.5),
    Settings(frequency_penalty=-1.5, top_p=0.9),
    Settings(presence_penalty=2.0),
    Settings(repetition_penalty=1.3),
    Settings(repetition_penalty=0.8, temperature=0.9, top_k=25),
    Settings(min_tokens=9, temperature=1.2),
    Settings(temperature=0, frequency_penalty=2.0, presence_penalty=2.0),
    Settings(
        temperature=1.4,
        top_k=30,
        top_p=0.85,
        min_p=0.01,
        frequency_penalty=0.7,
        presence_penalty=0.4,
        repetition_penalty=1.15,
        min_tokens=9,
    ),
]


@pytest.fixture(scope="module")
def vllm_steps():
    """Return vLLM's own sampler pieces, put together as Sampler.forward does for one request."""
    operations = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    layers = pytest.importorskip("vllm.model_executor.layers.utils")
    builtin = pytest.importorskip("vllm.v1.sample.logits_processor.builtin")
    sampler = pytest.importorskip("vllm.v1.sample.sampler").Sampler

    def run(
        logits: list[float],
        settings: Settings,
        prompt: list[int],
        output: list[int],
        stop: list[int],
    ):
        x = torch.tensor([logits])
        if len(output) < settings.min_tokens:
            x[0, stop] = -math.inf
        x = layers.apply_penalties(
            x,
            torch.tensor([prompt]),
            torch.tensor([output]),
            torch.tensor([settings.presence_penalty]),
            torch.tensor([settings.frequency_penalty]),
            torch.tensor([settings.repetition_penalty]),
        )
        if settings.greedy:
            return sampler.greedy_sample(x).item()
        x = sampler.apply_temperature(
            x, torch.tensor([max(settings.temperature, 0.01)]), all_random=True
        )
        if settings.min_p:
            processor = builtin.MinPLogitsProcessor.__new__(builtin.MinPLogitsProcessor)
            processor.min_p_count, processor.min_p = 1, torch.tensor([[settings.min_p]])
            x = processor.apply(x)
        k = torch.tensor([settings.top_k]) if settings.top_k > 0 else None
        p = torch.tensor([settings.top_p]) if settings.top_p < 1 else None
        return operations.apply_top_k_top_p_pytorch(x, k, p, allow_cpu_sync=True).softmax(dim=-1)[0]

    return run


def request(number: int, settings: Settings) -> tuple[list[float], list[int], list[int], list[int]]:
    """Return made-up logits (as coarse as bfloat16: many exact ties), prompt, output and stop tokens.

    vLLM adds up in float32, and in which order depends on the processor: where what top_p reaches is that near to a
    token's border, other logits are made up.
    """
    generator = random.Random(f"{SEED} {number}")
    while True:
        made = _request(generator)
        before = pipeline(
            None,
            settings.without("top_p"),
            logits=dict(enumerate(made[0])),
            prompt_tokens=made[1],
            output_tokens=made[2],
            stop_tokens=made[3],
        ).probabilities
        reached = accumulate(sorted(before.values(), reverse=True))
        if settings.top_p == 1 or min(abs(mass - settings.top_p) for mass in reached) > 1e-5:
            return made


def _request(generator: random.Random) -> tuple[list[float], list[int], list[int], list[int]]:
    logits = [round(generator.gauss(0, 3) * 32) / 32 for _ in range(VOCABULARY)]
    likely = sorted(range(VOCABULARY), key=logits.__getitem__)[-30:]
    output = generator.choices(likely, k=8)
    return logits, generator.choices(range(VOCABULARY), k=12), output, [likely[-1], likely[-5]]


def test_vllm_computes_the_same_distribution(vllm_steps):
    tie_count = 0
    for settings, seed in product(CASES, range(5)):
        logits, prompt, output, stop = request(seed, settings)
        theirs = vllm_steps(logits, settings, prompt, output, stop)
        ours = pipeline(
            None,
            settings,
            logits=dict(enumerate(logits)),
            prompt_tokens=prompt,
            output_tokens=output,
            stop_tokens=stop,
        )
        tie_count += bool(ties_of_top_p(ours))
        if settings.greedy:
            assert ours.probabilities == {theirs: 1.0}
        else:
            assert_equal(ours, theirs, (settings, seed))
    assert tie_count, "no ties stood at the border of top_p: they were not tried"


def assert_equal(ours: Pipeline, theirs, case) -> None:
    """Compare token by token; exact equals at the border of top_p are compared by their number and mass."""
    ties = ties_of_top_p(ours)
    for token, p in enumerate(theirs.tolist()):
        if token not in ties:
            assert abs(ours.probabilities.get(token, 0.0) - p) < 2e-6, (token, case)
    at_border = [p for token, p in enumerate(theirs.tolist()) if token in ties and p > 0]
    border_probabilities = [
        ours.probabilities[token] for token in ties if token in ours.probabilities
    ]
    assert border_probabilities == pytest.approx(at_border, abs=2e-6), case


REFUSED = (
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", math.nan),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("frequency_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("min_tokens", -1),
)
TAKEN = (
    ("temperature", 2.0),
    ("temperature", 0.0),
    ("top_p", 1.0),
    ("top_p", 1e-6),
    ("top_k", -1),
    ("top_k", 0),
    ("top_k", 10**6),
    ("min_p", 1.0),
    ("frequency_penalty", -2.0),
    ("presence_penalty", 2.0),
    ("repetition_penalty", 0.1),
    ("repetition_penalty", 5.0),
    ("min_tokens", 3),
)


def test_vllm_refuses_what_we_refuse_and_takes_what_we_take():
    parameters = pytest.importorskip("vllm").SamplingParams
    for name, value in REFUSED:
        with pytest.raises(ValueError, match=name):
            Settings(**{name: value})
        with pytest.raises(Exception, match=name):  # VLLMValidationError, no ValueError
            parameters(**{name: value})
    for name, value in TAKEN:
        parameters(**{name: value})
        Settings(**{name: value})


def test_every_parameter_of_a_request_is_a_field_of_vllms_requests():
    completions = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    chat = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    of_prompts = set(completions.CompletionRequest.model_fields)
    of_chats = set(chat.ChatCompletionRequest.model_fields)
    assert set(PARAMETERS) <= of_chats, "the server would pass over it without a word"
    chat_only = {name for name, parameter in PARAMETERS.items() if parameter.chat_only}
    assert chat_only == set(PARAMETERS) - of_prompts
