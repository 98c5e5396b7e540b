"""Rows for the engine in process: many at once are what each alone is, and one bad row harms no other."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
from types import SimpleNamespace

import pytest

from workshop.batch import offline as offline_module
from workshop.batch.keep import store
from workshop.batch.offline import EngineEnded, OfflineBatch
from workshop.batch.read.rows import CHAT, COMPLETIONS, InputRow
from workshop.errors import BadInput, WorkshopError
from workshop.servers.local import TEACHING_FOLDER
from workshop.vllm_package import installed
from workshop.workarounds import cpu_package_name

pytestmark = pytest.mark.skipif(
    not installed()[0], reason="vLLM is not installed: its request classes are needed"
)
LONGEST = 100


@pytest.fixture(scope="module")
def llm():
    """What `Maker` needs of an LLM: its tokenizer, its renderer and two facts."""
    version = importlib.metadata.version
    cpu_package_name.apply()  # replaces it for the whole process
    from vllm.config import ModelConfig
    from vllm.renderers import renderer_from_config

    config = ModelConfig(str(TEACHING_FOLDER), max_model_len=LONGEST)
    config.get_diff_sampling_param = dict
    ranks = SimpleNamespace(_api_process_rank=0)
    renderer = renderer_from_config(SimpleNamespace(model_config=config, parallel_config=ranks))
    engine = SimpleNamespace(model_config=config, renderer=renderer)
    yield SimpleNamespace(get_tokenizer=renderer.get_tokenizer, llm_engine=engine)
    importlib.metadata.version = version


@pytest.fixture
def maker(llm):
    from workshop.batch.engine_rows import Maker

    return Maker(llm)


def row(number: int, url: str = COMPLETIONS, **body) -> InputRow:
    return InputRow(number, number + 1, f"row-{number}", url, json.dumps(body))


ROWS = [
    row(0, prompt="Boston is a", max_tokens=5),
    row(1, prompt="Paris is a", max_tokens=5, temperature=0.5),
    row(2, prompt="Rome is a city in", max_tokens=5),
    row(3, prompt=[5, 6, 7], max_tokens=5),
    row(4, prompt="Rome", add_special_tokens=False),
    row(5, prompt="Oslo is a"),
    row(6, prompt="Bern", seed=7, n=3),
    row(7, CHAT, messages=[{"role": "user", "content": "What is Rome?"}], max_tokens=9),
    row(8, prompt="one two three four five six seven", max_tokens=5, truncate_prompt_tokens=2),
]


def test_rows_together_are_what_each_is_alone(maker, llm):
    from workshop.batch.engine_rows import Maker

    together = maker.requests(ROWS)
    alone = [Maker(llm).requests([batch_row])[0] for batch_row in ROWS]
    assert [request.prompt for request in together] == [request.prompt for request in alone]
    assert [repr(request.params) for request in together] == [
        repr(request.params) for request in alone
    ]
    assert together[3].prompt == {"prompt_token_ids": [5, 6, 7]} and together[6].params.n == 3
    assert len(together[8].prompt["prompt_token_ids"]) == 2


def test_parameters_are_the_rows_own(maker):
    first, second, third, _, without, no_limit, several, chat, _ = (
        request.params for request in maker.requests(ROWS)
    )
    assert (first.temperature, second.temperature) == (1.0, 0.5) and first is third
    assert (
        no_limit.max_tokens == without.max_tokens == 16
        and several.seed == 7
        and chat.max_tokens == 9
    )


def test_a_limit_that_is_not_given_is_what_is_left_of_the_context(maker):
    for number, text in enumerate(("Rome", "What is Rome?")):
        (request,) = maker.requests(
            [row(number, CHAT, messages=[{"role": "user", "content": text}])]
        )
        assert request.params.max_tokens == LONGEST - len(request.prompt["prompt_token_ids"])


TRIMS = "{% for each in messages %}{{ each['content'] | trim }}{% endfor %}{% if tools %} {{ tools[0]['function']['name'] }}{% endif %}"
TOOL = {"type": "function", "function": {"name": "Boston", "parameters": {}}}


def test_a_chat_is_the_prompt_that_vllms_server_makes_of_it(maker, llm):
    question = {"role": "user", "content": "Rome"}
    # Llama's template trims whatever it is given, a list of parts as well
    parts = {"role": "user", "content": [{"type": "text", "text": "Rome"}]}
    begun = {"role": "assistant", "content": "It is"}
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    for messages, more, prompt in (
        ([parts], {"chat_template": TRIMS}, "Rome"),
        ([question], {"chat_template": TRIMS, "tools": [TOOL]}, "Rome Boston"),
        ([question, begun], goes_on, "<|begin_of_text|>Question: Rome\nAnswer: It is"),
    ):
        (request,) = maker.requests([row(0, CHAT, messages=messages, **more)])
        assert llm.get_tokenizer().decode(request.tokens) == prompt


BAD_ROWS = (
    ({"prompt": "half of a pair: \ud83d"}, "TextEncodeInput|surrogate"),
    ({"prompt": [5] * LONGEST}, "maximum context length"),
    ({"prompt": [-1, 5]}, "0 or more"),
    ({"prompt": 7}, "text"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "x", "max_tokens": LONGEST}, "maximum context length"),
    ({"prompt": "x", "top_p": 7}, "top_p"),
    ({"prompt": "x", "echo": True}, "echo"),
)


def test_one_bad_row_is_refused_alone(maker):
    good = [row(1, prompt="Boston is a"), row(2, prompt="Paris is a")]
    for bad, message in (*BAD_ROWS, *BAD_ROWS):  # the second time from what is remembered
        first, refused, last = maker.requests([good[0], row(0, **bad), good[1]])
        assert isinstance(refused, Exception), bad
        with pytest.raises(type(refused), match=message):
            raise refused
        assert [request.prompt for request in (first, last)] == [
            request.prompt for request in maker.requests(good)
        ], bad


class Engine:
    """Ends one request at each step, with `answers` of its samples (None: all)."""

    def __init__(self, llm, answers=None):
        self.model_config, self.renderer = llm.llm_engine.model_config, llm.llm_engine.renderer
        self.answers = answers
        self.queue, self.highest = [], 0

    def add_request(self, name, prompt, params):
        self.queue.append((name, prompt, params))
        self.highest = max(self.highest, sum(queued_params.n for _, _, queued_params in self.queue))

    def step(self):
        name, prompt, params = self.queue.pop(0)
        outputs = [
            SimpleNamespace(
                index=index,
                finish_reason="length",
                stop_reason=None,
                text=" x",
                token_ids=[5],
                logprobs=None,
            )
            for index in range(min(params.n, self.answers or params.n))
        ]
        return [
            SimpleNamespace(
                request_id=name, finished=True, prompt_logprobs=None, outputs=outputs, **prompt
            )
        ]


@pytest.fixture
def offline(llm, tmp_path, put):
    """Return a function that makes a batch of rows for an engine of this file."""

    def new(rows, engine, output="out.jsonl", concurrency=4, **options):
        options.setdefault(
            "llm", SimpleNamespace(get_tokenizer=llm.get_tokenizer, llm_engine=engine)
        )
        path = put(rows, "rows.jsonl")
        return OfflineBatch(path, tmp_path / output, concurrency=concurrency, **options)

    return new


def test_no_more_sequences_fly_than_were_asked_for(llm, offline):
    """But for the samples of one row, which are one request."""
    for number, (limit, samples, most) in enumerate(((5, 3, 7), (400, 1, 200))):
        engine = Engine(llm)
        rows = [{"prompt": f"{n} is", "n": samples if n % 2 else 1} for n in range(200)]
        made = offline(rows, engine, f"{number}.jsonl", concurrency=limit)
        assert made.run().answered == 200
        assert engine.highest <= most + samples - 1
        assert limit < 400 or engine.highest == most


def test_one_answer_of_three_samples_is_among_the_errors(llm, offline):
    rows = [{"prompt": "a", "n": 3}, {"prompt": "b"}]
    summary = offline(rows, Engine(llm, answers=1)).run()
    assert (summary.answered, summary.errors, summary.exit_code) == (1, 1, 1)


def test_a_disk_that_is_full_at_the_end_is_one_sentence_offline_too(
    llm, offline, tmp_path, monkeypatch
):
    real = os.write

    def full(file, data):
        if "out.jsonl" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(store.os, "write", full)
        with pytest.raises(WorkshopError, match="No space is left"):
            offline(2, Engine(llm)).run()
    record = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    assert record["runs"][-1]["state"] == "failed"
    assert offline(2, Engine(llm)).run().answered == 2
    with pytest.raises(BadInput, match="input and output at once"):
        offline(2, Engine(llm), output="rows.jsonl")


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", ["step", "start"])
def test_an_engine_that_ends_with_the_signal_that_stops_the_batch_is_an_interruption(
    name, stopped, llm, offline, monkeypatch
):
    """A terminal's Ctrl-C, and scancel, reach the engine's own processes, also while it starts."""
    engine = Engine(llm)
    batch = offline(2, engine) if name == "step" else offline(2, engine, llm=None)

    def dies(*_):
        batch.stopping = stopped
        raise EngineEnded("vLLM's engine ended.")

    monkeypatch.setattr(engine if name == "step" else offline_module, name, dies)
    if stopped:
        assert batch.run().exit_code == 75
    else:
        with pytest.raises(WorkshopError, match="engine ended"):
            batch.run()
