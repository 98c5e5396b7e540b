"""Tell the story of a GPU that fills, frame by frame: weights, work space, requests until one waits.

There are no widgets here. All sizes are `workshop.plan`'s, in GiB of one GPU; a square is 1 GiB. A
card of 80 GB has 80 squares, as the number on its box is nearly GiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.gpus import GIB

from workshop.course.drawing.readable_numbers import counted
from workshop.engine.planning import plan
from workshop.errors import BadInput

GPU_COUNTS = (1, 2, 4, 8)
FORMATS = {16: None, 8: "fp8", 4: "awq"}  # bits of a weight → vLLM's name of the quantization
SHARES = {2: "half", 4: "a quarter", 8: "an eighth"}  # of every layer on each GPU


@dataclass(frozen=True)
class FieldSplit:
    """One model on one number of GPUs: what it takes of each, in GiB."""

    model: str
    card: str  # the GPU's title
    gpus: int
    bits: int | None  # of a weight, where the story compares formats
    squares: int  # of one GPU
    usable: float  # what vLLM may use
    weights: float
    work_space: float
    tokens: int  # of one request; 0 in a story of weights alone
    request: float  # the KV cache of one request
    room: int  # requests that fit at the same time

    @property
    def reserve(self) -> float:
        """The part of the GPU that vLLM leaves alone; it lies at the bottom of the field."""
        return self.squares - self.usable

    @property
    def kv_room(self) -> float:
        """Return what weights and work space leave for the KV cache; below 0 where they are too much."""
        return self.usable - self.weights - self.work_space


@dataclass(frozen=True)
class Frame:
    """One step of the story: what lies in the GPUs of a split, and what has just come."""

    split: FieldSplit
    has_weights: bool = False
    has_work_space: bool = False
    requests: int = 0
    is_waiting: bool = False  # one more request, which has no room
    text: str = ""

    @property
    def first_request(self) -> float:
        """Return where the requests begin, in squares from the bottom.

        Small requests are cells of a square, so they begin at the next whole cell.
        """
        split = self.split
        begin = split.reserve + split.weights + split.work_space
        cells = cells_of_a_square(split)
        if cells:
            return -(-begin * cells // 1) / cells
        return begin

    @property
    def top(self) -> float:
        """Return how high the field is filled, in squares from the bottom."""
        split = self.split
        if self.requests or self.is_waiting:
            return self.first_request + (self.requests + self.is_waiting) * split.request
        filled = split.reserve
        if self.has_weights:
            filled += split.weights
        if self.has_work_space:
            filled += split.work_space
        return filled


def cells_of_a_square(split: FieldSplit) -> int:
    """Return how many requests fill one square exactly, as the cells of a grid; else 0."""
    if not 0 < split.request < 1:
        return 0
    across = round(split.request**-0.5)
    if abs(across**2 * split.request - 1) < 1e-9:
        return across**2
    return 0


def story(
    model: str,
    gpu: str = "h100",
    *,
    tokens: int = 512,
    max_model_len: int | None = None,
    requests: int | None = None,
    bits: Sequence[int] = (),
) -> tuple[Frame, ...]:
    """Return the frames from an empty GPU to the last request.

    The arguments are those of the widget (`view.GpuField`).

    Raises:
        BadInput: a name is unknown, or a number is out of range.
    """
    if bits:
        return _formats(model, gpu, bits)
    tokens = _whole("tokens", tokens)
    if requests is not None:
        requests = _whole("requests", requests)
    longest = max_model_len or max(8192, tokens)
    if longest < tokens:
        wrong = f"A request of {tokens:,} tokens is longer than max_model_len, {longest:,}."
        raise BadInput(wrong, "Give a max_model_len that is at least as large.")
    frames: list[Frame] = []
    for count in GPU_COUNTS:
        split = _split(model, gpu, count, None, tokens, longest)
        if not frames:
            frames.append(Frame(split, text=_empty(split)))
        frames += _filled(split, requests)
        if split.room:
            break
    return tuple(frames)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name} is {value!r}, and must be a whole number from 1.", "Give one.")
    return value


def _formats(model: str, gpu: str, bits: Sequence[int]) -> tuple[Frame, ...]:
    """Return the weights of one model in several formats, each poured into one GPU."""
    published = load_model(model)
    if published.quantization or published.dtype not in ("bfloat16", "float16"):
        wrong = f"{model} is not published in 16 bits."
        raise BadInput(wrong, "Name a model whose weights are bfloat16 or float16.")
    frames: list[Frame] = []
    for width in bits:
        if width not in FORMATS:
            wrong = f"bits is {width!r}, and must be {', '.join(map(str, FORMATS))}."
            raise BadInput(wrong, "Give some of them, such as (16, 8).")
        split = _split(model, gpu, 1, width, 0, 8192)
        # The weights alone: what else must fit comes later in the course.
        split = replace(split, work_space=0.0)
        if not frames:
            frames.append(Frame(split, text=_empty(split)))
        frames.append(Frame(split, has_weights=True, text=_weights(split)))
    return tuple(frames)


def _split(
    model: str, gpu: str, gpus: int, bits: int | None, tokens: int, max_model_len: int
) -> FieldSplit:
    quantization = None
    if bits:
        quantization = FORMATS[bits]
    planned = plan(
        model,
        gpu,
        tensor_parallel_size=gpus,
        max_model_len=max_model_len,
        quantization=quantization,
    )
    work_space = sum(overhead.bytes for overhead in planned.overheads) / GIB
    request = tokens * planned.kv_bytes_per_token / gpus / GIB
    room = 0
    if tokens:
        room = planned.kv_cache_tokens // tokens
    card = load_gpu(gpu)
    return FieldSplit(
        model=model,
        card=card.title,
        gpus=gpus,
        bits=bits,
        squares=card.marketing_gb,
        usable=planned.requested_gib_per_gpu,
        weights=planned.weights_gib_per_gpu,
        work_space=work_space,
        tokens=tokens,
        request=request,
        room=room,
    )


def _filled(split: FieldSplit, most: int | None) -> list[Frame]:
    """Return the frames of one split: weights, work space, requests in doubling steps."""
    weights = Frame(split, has_weights=True, text=_weights(split))
    frames = [weights]
    if split.weights > split.usable:
        return frames
    ready = replace(weights, has_work_space=True, text=_work_space(split))
    frames.append(ready)
    last = split.room
    if most is not None:
        last = min(last, most)
    for count in _doubling(last):
        frames.append(replace(ready, requests=count, text=_requests(split, count)))
    if last == split.room:
        frames.append(replace(frames[-1], is_waiting=True, text=_waits(split)))
    return frames


def _doubling(last: int) -> list[int]:
    counts = []
    count = 1
    while count < last:
        counts.append(count)
        count *= 2
    if last:
        counts.append(last)
    return counts


def gib(size: float) -> str:
    """Return a size in GiB with one decimal, and one below 1 GiB in MiB: 64 MiB."""
    if 0 < size < 1:
        return f"{size * 1024:,.0f} MiB"
    return f"{size:,.1f} GiB"


def _empty(split: FieldSplit) -> str:
    return (
        f"The memory of one {split.card}: {split.squares} squares of 1 GiB, up to the line. "
        f"vLLM may use {split.usable:.1f} of them."
    )


def _weights(split: FieldSplit) -> str:
    if split.bits:
        return (
            f"{split.model} in {split.bits} bits: {gib(split.weights)} of weights. {_fits(split)}"
        )
    if split.weights > split.usable:
        too_much = gib(split.weights - split.usable)
        return f"{_on(split)}, the weights of {split.model} take {gib(split.weights)}: {too_much} too much."
    if split.gpus == 1:
        return f"The weights of {split.model} pour in and stay: {gib(split.weights)}."
    share = SHARES[split.gpus]
    return f"{_on(split)}, each holds {share} of every layer: {gib(split.weights)} of weights."


def _fits(split: FieldSplit) -> str:
    left = split.usable - split.weights
    if left < 0:
        return f"{gib(-left)} too much."
    return f"They fit, and {gib(left)} are left."


def _on(split: FieldSplit) -> str:
    if split.gpus == 1:
        return "On one GPU"
    return f"On {split.gpus} GPUs"


def _work_space(split: FieldSplit) -> str:
    left = f"{gib(split.kv_room)} are left for the KV cache"
    if split.gpus > 1:
        left = f"{gib(split.kv_room)} are left for the KV cache on each"
    return f"Work space, to compute in: {gib(split.work_space)}. {left}."


def _requests(split: FieldSplit, count: int) -> str:
    shared = ""
    if split.gpus > 1:
        shared = f", shared by {split.gpus} GPUs"
    whole = gib(count * split.request * split.gpus)
    return f"{counted(count, 'request')} of {split.tokens:,} tokens: {whole} of KV cache{shared}."


def _waits(split: FieldSplit) -> str:
    if split.room == 0:
        needed = gib(split.request)
        return (
            f"One request of {split.tokens:,} tokens needs {needed} on each GPU, and "
            f"{gib(split.kv_room)} are left: it does not fit."
        )
    return f"Full: request {split.room + 1:,} must wait until one of these {split.room:,} is done."
