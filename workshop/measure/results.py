"""Reads the result files of `vllm bench serve --save-result`, and names what spoils them.

For each measurement: the faults that the file shows, and those that it could have and does not rule
out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workshop.errors import BadInput
from workshop.files import open_regular
from workshop.measure import checks
from workshop.measure.checks import Fault
from workshop.measure.points import MEASURES, Figures
from workshop.simulate.report import PERCENTILES

MOST_BYTES = 512 << 20
REMEDY = "Give a file of `vllm bench serve --save-result`."


@dataclass(frozen=True)
class Measurement:
    """One measurement of a file.

    prompts: what tells its prompts apart.
    send_times_known: the file has a rate and when each request was sent, so a slow client would
        show.
    """

    source: str
    name: str
    requests: int
    seconds: float | None
    tokens_per_s: float | None
    figures: Figures
    seed: int | None
    prompts: str
    send_times_known: bool
    faults: list[Fault] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        data = asdict(self)
        del data["prompts"]
        del data["send_times_known"]
        for measure, values in data.pop("figures").items():
            data[f"{measure}_ms"] = values
        return data


def read(paths: Sequence[str | Path]) -> list[Measurement]:
    """Read measurements from files. Raises BadInput: a file is not vLLM's."""
    measurements = []
    for path in paths:
        objects = list(_objects(path))
        if not objects:
            raise BadInput(f"{path} is empty.", REMEDY)
        for data in objects:
            if "completed" not in data or "duration" not in data:
                raise BadInput(f"{path} is no result of vllm bench serve.", REMEDY)
            measurements.append(_measurement(str(path), data))
    _note_same_prompts(measurements)
    return measurements


def _objects(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file: one, or one a line (vllm bench serve --append-result)."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BadInput(f"{path} is larger than {MOST_BYTES >> 20} MiB.", REMEDY)
    text = content.decode("utf-8", errors="replace")
    decoder = json.JSONDecoder()
    position = 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            raise BadInput(f"{path} is not JSON.", REMEDY) from None
        if not isinstance(value, dict):
            raise BadInput(f"{path} holds no JSON object.", REMEDY)
        yield value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _measurement(source: str, data: dict[str, Any]) -> Measurement:
    requests = int(_number(data["completed"]) or 0)
    rate = data.get("request_rate")
    at_once = data.get("max_concurrency")
    parts = []
    if _number(rate) is not None:
        parts.append(f"{rate:g} a second")
    if _number(at_once) is not None:
        parts.append(f"{at_once} at once")
    figures = _figures_of(data)
    starts_s = [start for start in data.get("start_times", []) if _number(start) is not None]
    answer_ms = figures["e2el"]["p95"] or figures["e2el"]["p99"] or 0.0
    faults = checks.of_sending(requests, _number(rate), starts_s, answer_ms / 1e3)
    faults += _unanswered(requests, _number(data.get("num_prompts")))
    seed = _written_seed(data)
    return Measurement(
        source=source,
        name=", ".join(parts) or "all at once",
        requests=requests,
        seconds=_number(data["duration"]),
        tokens_per_s=_number(data.get("output_throughput")),
        figures=figures,
        seed=seed,
        prompts=_fingerprint(data, seed),
        send_times_known=_number(rate) is not None and len(starts_s) > 1,
        faults=faults,
    )


def _figures_of(result: dict[str, Any]) -> Figures:
    """Return the percentiles of a result of vllm bench serve; None where it has no value."""
    figures: Figures = {}
    for name in MEASURES:
        times_ms: dict[str, float | None] = {}
        for p in PERCENTILES:
            times_ms[f"p{p}"] = result.get(f"p{p}_{name}_ms")
        if times_ms["p50"] is None:
            times_ms["p50"] = result.get(f"median_{name}_ms")
        times_ms["mean"] = result.get(f"mean_{name}_ms")
        figures[name] = times_ms
    return figures


def _written_seed(data: dict[str, Any]) -> int | None:
    """Return the seed that the file names (`--metadata seed=N`), or None."""
    try:
        return int(str(data.get("seed")))
    except ValueError:
        return None


def _unanswered(answered: int, sent: float | None) -> list[Fault]:
    """Return the fault of a load with failed requests: the server had less to do than it says."""
    if sent is None or answered >= sent:
        return []
    sentence = (
        f"{sent - answered:,.0f} of {sent:,.0f} requests have no answer: the figures are those of the others alone. "
        "Look at the server's log, and measure again."
    )
    return [Fault("unanswered", sentence)]


def _fingerprint(data: dict[str, Any], seed: int | None) -> str:
    """Return what two runs with one seed share: the number of prompts and all their lengths."""
    lengths = data.get("input_lens")
    total = data.get("total_input_tokens")
    return json.dumps([data.get("num_prompts"), total, lengths, data.get("model_id"), seed])


def _note_same_prompts(measurements: Sequence[Measurement]) -> None:
    """Add the fault of measurements that may have reused prompts from the prefix cache."""
    counts = Counter(measurement.prompts for measurement in measurements)
    for measurement in measurements:
        others = counts[measurement.prompts] - 1
        if others > 0:
            same = "had the same prompts (same seed and lengths)"
            sentence = (
                f"{others} other measurements of these files {same}: all but the first may have measured the prefix "
                "cache. Give each a seed of its own."
            )
            measurement.faults.append(Fault("prefix cache", sentence))
        elif measurement.seed is None:
            sentence = (
                "The file does not name its seed, which is 0 unless --seed was given: an earlier run with the same "
                "seed would have filled the prefix cache. `--metadata seed=N` writes it into the file."
            )
            measurement.faults.append(Fault("seed unknown", sentence))


def unknown(measurement: Measurement) -> list[str]:
    """Return what a result file cannot show, in one sentence each."""
    missing = [name for name in MEASURES if measurement.figures[name]["p50"] is None]
    sentences = [
        "Whether the prefix cache was hit, and who else used the server: /metrics shows it.",
        "Whether another process answered, such as an old server that was not stopped: the file does "
        "not name the process.",
    ]
    if not measurement.send_times_known:
        sentences.append(
            "Whether the client was slower than its load: no rate with the times of sending was read "
            "from the file."
        )
    if missing:
        sentences.append(f"{', '.join(missing)}: not in the file.")
    return sentences
