from collections.abc import Sequence

import ipywidgets as widgets

from workshop.course.widgets.controls import View, in_a_row, whole
from workshop.course.widgets.gpu_field.case import Frame, story
from workshop.course.widgets.gpu_field.picture import FieldStage, picture

MS_A_STEP = 1300


class GpuField(View):
    """A GPU as a field of squares of 1 GiB that fills: press ▶, or drag `step`.

    Weights pour in, then the work space; then requests drop in, twice as many at each step, until
    one must wait. A model that does not fit overflows, and is cut over 2, 4 or 8 GPUs (tensor
    parallelism) until a request has room. All sizes are those of `workshop.plan`. The browser turns
    the pages by itself: a step asks nothing of the kernel.

    >>> from workshop import GpuField
    >>> field = GpuField("llama-3.1-8b", "h100", tokens=512)
    >>> field.frames[-1].text
    'Full: request 882 must wait until one of these 881 is done.'

    Args:
        model: a catalog name, or a folder with a config.json.
        gpu: a name of the catalog; it has as many squares as its box says GB.
        tokens: of one request, prompt and answer together.
        max_model_len: the longest request that the server allows; by default 8,192, or `tokens`.
        requests: the story ends after so many; None goes on until one must wait.
        bits: formats of a weight, of 16, 8 and 4: the story is of the weights alone, in each of them
            on one GPU.

    Raises:
        BadInput: a name is unknown, or a number is out of range.
    """

    def __init__(
        self,
        model: str = "llama-3.1-8b",
        gpu: str = "h100",
        *,
        tokens: int = 512,
        max_model_len: int | None = None,
        requests: int | None = None,
        bits: Sequence[int] = (),
    ):
        self.frames = story(
            model,
            gpu,
            tokens=tokens,
            max_model_len=max_model_len,
            requests=requests,
            bits=bits,
        )
        stage = FieldStage.of(self.frames)
        befores = (None, *self.frames)
        pages = [
            widgets.HTML(
                picture(frame, before, stage), layout=widgets.Layout(width="100%", margin="0")
            )
            for frame, before in zip(self.frames, befores, strict=False)
        ]
        last = len(pages) - 1
        self.play = widgets.Play(value=0, min=0, max=last, interval=MS_A_STEP, show_repeat=False)
        self.step = whole("step", 0, 0, last, width="min(420px, 100%)")
        wide = widgets.Layout(width="100%", max_width="860px")
        self.pages = widgets.Stack(pages, selected_index=0, layout=wide)
        self._links = (
            widgets.jslink((self.play, "value"), (self.step, "value")),
            widgets.jslink((self.step, "value"), (self.pages, "selected_index")),
        )
        super().__init__(in_a_row(self.play, self.step), self.pages)

    @property
    def frame(self) -> Frame:
        """The frame at which the slider stands."""
        return self.frames[self.step.value]
