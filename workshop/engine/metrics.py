"""Read a running vLLM's /metrics: a snapshot, and the rates between two snapshots.

The names are those of vLLM from 0.10 on. A value that a version does not publish is None.
"""

import math
import operator
import re
import time as clock
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from workshop.engine import http
from workshop.errors import BadInput, WorkshopError

PREFIX = "vllm:"
ASK = "Ask the server itself: http://HOST:PORT/metrics."
# (labels, value) of one sample
Sample = tuple[dict[str, str], float]
# name, without "vllm:", → its samples
Samples = dict[str, list[Sample]]
COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "ttft_count", "ttft_sum_s")


def _called(name: str) -> Any:
    """Return a field of Metrics with vLLM's name for it."""
    return field(default=None, metadata={"name": name})


@dataclass(frozen=True)
class EngineWork:
    """The work of one engine: a server has several with data parallelism.

    `work` is (prompt tokens, generated tokens, KV-cache usage). A prompt is counted when its last
    chunk is computed; until then the KV cache grows.
    """

    running: int
    work: tuple[float, float, float]
    is_asleep: bool


@dataclass(frozen=True)
class Metrics:
    """One snapshot of /metrics.

    With several engines (data parallel) kv_cache_usage is that of the fullest one, the rest are
    sums.
    """

    time: float  # seconds, of one clock
    requests_running: int | None = _called("num_requests_running")
    requests_waiting: int | None = _called("num_requests_waiting")
    kv_cache_usage: float | None = _called("kv_cache_usage_perc")  # 0 to 1
    prompt_tokens_total: float | None = _called("prompt_tokens_total")
    generation_tokens_total: float | None = _called("generation_tokens_total")
    preemptions_total: float | None = _called("num_preemptions_total")
    prefix_hits_total: float | None = _called("prefix_cache_hits_total")
    requests_total: float | None = _called("request_success_total")
    # speculative decoding: drafts, their tokens, the tokens that the model accepted, and those by
    # place in the draft
    drafts_total: float | None = _called("spec_decode_num_drafts_total")
    drafted_total: float | None = _called("spec_decode_num_draft_tokens_total")
    accepted_total: float | None = _called("spec_decode_num_accepted_tokens_total")
    accepted_at: tuple[float, ...] = ()
    ttft_count: float | None = _called("time_to_first_token_seconds_count")
    ttft_sum_s: float | None = _called("time_to_first_token_seconds_sum")
    # the prefill times of all requests, without the time in the queue
    prefill_count: float | None = _called("request_prefill_time_seconds_count")
    prefill_sum_s: float | None = _called("request_prefill_time_seconds_sum")
    # by their labels; none where nothing counts tokens, as on the page of a proxy
    engines: Mapping[str, EngineWork] = field(default_factory=dict)
    num_blocks: int | None = None
    block_size: int | None = None

    @property
    def kv_cache_tokens(self) -> int | None:
        """The tokens that one engine's KV cache holds; None if the version does not publish them."""
        if not self.num_blocks or not self.block_size:
            return None
        return self.num_blocks * self.block_size


@dataclass(frozen=True)
class Rates:
    """Rates between two snapshots.

    The mean is over the requests whose first token came in between, or None if there were none.
    """

    seconds: float
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    ttft_mean_s: float | None


def parse(text: str, time: float | None = None) -> Metrics:
    """Read a /metrics page. Raises BadInput: it is no Prometheus text, or not vLLM's."""
    samples = _samples(text)
    if not samples:
        raise BadInput(
            "This is not vLLM's /metrics page: no metric on it begins with 'vllm:'.", ASK
        )
    values: dict[str, Any] = {}
    for metric in fields(Metrics):
        if metric.metadata:
            largest = metric.name == "kv_cache_usage"
            value = _value(samples, metric.metadata["name"], largest)
            if value is not None and metric.name in ("requests_running", "requests_waiting"):
                value = int(value)
            values[metric.name] = value
    if time is None:
        time = clock.time()
    return Metrics(
        time,
        accepted_at=_accepted_at(samples),
        engines=_engines(samples),
        **values,
        **_cache_config(samples),
    )


def _samples(text: str) -> Samples:
    """Return vLLM's samples of a /metrics page. Raises BadInput: it is no Prometheus text."""
    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.startswith(PREFIX):
                    continue
                series = samples.setdefault(sample.name.removeprefix(PREFIX), [])
                if 0 <= sample.value < math.inf:  # neither NaN nor below 0
                    series.append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise BadInput(f"This is not a /metrics page: {error}.", ASK) from error
    return samples


def fetch(
    url: str, api_key: str | None = None, timeout_s: float = 5.0, proxy: str | None = None
) -> Metrics:
    """Return a snapshot of a server's metrics.

    Args:
        url: the server's address, with or without /v1 or /metrics.
        proxy: the only web proxy that may be used.

    Raises WorkshopError: it does not answer, refuses the key, or answers with something else.
    """
    address = metrics_url(url)
    headers: dict[str, str] = {}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        answer, page = http.get(address, timeout_s, headers=headers, proxy=proxy, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorkshopError(
            f"{address} does not answer: {error or type(error).__name__}.",
            "Is the server running? `workshop servers` lists those known here.",
        ) from error
    if answer.status_code in (401, 403):
        raise WorkshopError(
            f"{address} refuses the key.", "Set WORKSHOP_API_KEY to the server's key."
        )
    if answer.status_code != 200:
        raise WorkshopError(f"{address} answered {answer.status_code}.", "Is this a vLLM server?")
    return parse(page.decode(errors="replace"))


def metrics_url(url: str) -> str:
    """Return where a server's metrics are: /metrics stands beside /v1, not under it."""
    base = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")
    if "://" not in base:
        base = f"http://{base}"
    return f"{base}/metrics"


def rates(before: Metrics, after: Metrics) -> Rates:
    """Return the rates between two snapshots of one server.

    Raises BadInput: `after` is not later than `before`.
    """
    seconds = after.time - before.time
    if seconds <= 0:
        raise BadInput(
            f"The second look is {-seconds:g} s before the first.", "Give them in their order."
        )
    old = _counters(before)
    new = _counters(after)
    differences = list(map(operator.sub, new, old))
    # After a restart counters begin at zero again, and what they show came after it.
    if min(differences) < 0:
        differences = new
    prompt_tokens, generation_tokens, count, sum_s = differences
    ttft_mean_s = None
    if count > 0:
        ttft_mean_s = sum_s / count
    return Rates(
        seconds,
        prompt_tokens_per_s=prompt_tokens / seconds,
        generation_tokens_per_s=generation_tokens / seconds,
        ttft_mean_s=ttft_mean_s,
    )


def _counters(metrics: Metrics) -> list[float]:
    """Return the values of COUNTERS, 0 for those that are not published."""
    return [getattr(metrics, name) or 0.0 for name in COUNTERS]


def _value(samples: Samples, name: str, largest: bool) -> float | None:
    """Return the sum over the engines, or the largest value; None without any."""
    values = [value for _, value in samples.get(name, [])]
    if not values:
        return None
    if largest:
        return max(values)
    return sum(values)


def _engines(samples: Samples) -> dict[str, EngineWork]:
    """Return the engines by their labels; none where nothing counts tokens."""
    names = {metric.name: metric.metadata.get("name", "") for metric in fields(Metrics)}
    prompt_tokens = _by_engine(samples, names["prompt_tokens_total"])
    generation_tokens = _by_engine(samples, names["generation_tokens_total"])
    usage = _by_engine(samples, names["kv_cache_usage"])
    running = _by_engine(samples, names["requests_running"])
    asleep = set()
    for labels, value in samples.get("engine_sleep_state", []):
        if value and labels.get("sleep_state") != "awake":
            asleep.add(labels.get("engine", ""))
    engines = {}
    for label in sorted(prompt_tokens.keys() | generation_tokens.keys()):
        work = (
            prompt_tokens.get(label, 0.0),
            generation_tokens.get(label, 0.0),
            usage.get(label, 0.0),
        )
        engines[label] = EngineWork(int(running.get(label, 0)), work, label in asleep)
    return engines


def _by_engine(samples: Samples, name: str) -> dict[str, float]:
    """Return the sum of a metric's samples for each engine."""
    sums: dict[str, float] = {}
    for labels, value in samples.get(name, []):
        label = labels.get("engine", "")
        sums[label] = sums.get(label, 0.0) + value
    return sums


def _accepted_at(samples: Samples) -> tuple[float, ...]:
    """Return the accepted tokens at each place in a draft."""
    accepted: dict[int, float] = {}
    for labels, value in samples.get("spec_decode_num_accepted_tokens_per_pos_total", []):
        position = labels.get("position", "")
        if re.fullmatch("[0-9]{1,3}", position):
            accepted[int(position)] = accepted.get(int(position), 0) + value
    return tuple(accepted[position] for position in sorted(accepted))


def _cache_config(samples: Samples) -> dict[str, int | None]:
    """Return the size of the KV cache, as an information metric's labels give it."""
    info: dict[str, str] = {}
    series = samples.get("cache_config_info", [])
    if series:
        info, _ = series[0]
    return {
        "num_blocks": _whole(info.get("num_gpu_blocks", "")),
        "block_size": _whole(info.get("block_size", "")),
    }


def _whole(text: str) -> int | None:
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    return None
