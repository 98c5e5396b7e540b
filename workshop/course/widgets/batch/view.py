"""Show how far a batch is, in a notebook: `batch.run(…, report=BatchProgress())`."""

from __future__ import annotations

from dataclasses import replace

import ipywidgets as widgets
from IPython.display import display

from workshop.batch.progress import Progress, summary_line
from workshop.course.drawing.html import Html, bar, bold, muted, panel
from workshop.course.widgets.controls import View


def picture(progress: Progress) -> Html:
    """Return a bar of answered and failed rows, and a line with rates, usage and time left."""
    rows = max(progress.rows, 1)
    done = 100 * progress.done / rows
    failed = 100 * progress.errors / rows
    answered = bar((("good", done), ("bad", failed)), label="rows answered", now=round(done))
    kv = ""
    if progress.kv_cache_usage is not None:
        used = 100 * progress.kv_cache_usage
        now = f"{used:.0f} % · {progress.running} running · {progress.waiting} waiting"
        kv = muted("KV cache", bar([("kv", used)], cls="thin inline"), now)
    line = summary_line(replace(progress, kv_cache_usage=None))  # its bar says it
    head = bold(f"{progress.done:,} of {progress.rows:,} rows answered")
    return panel(head, answered, kv, muted(line))


class BatchProgress(View):
    """The progress of a batch: rows answered and failed, tokens/s, KV-cache usage, time left.

    The usage is the server's, in percent.

    Give it to `batch.run` as `report`; it is called with what is known, several times a second.

    >>> from workshop import BatchProgress, batch
    >>> bar = BatchProgress()
    >>> bar(batch.Progress(rows=200, done=50, errors=2, new=50, seconds=5, rows_per_s=10,
    ...                    generation_tokens_per_s=160, in_flight=8, limit=8))
    >>> "50 of 200 rows answered" in bar.picture.value
    True
    """

    def __init__(self) -> None:
        self.picture = widgets.HTML()
        super().__init__(self.picture)

    def __call__(self, progress: Progress) -> None:
        self.picture.value = picture(progress)

    def show(self) -> BatchProgress:
        """Display it now, above what the cell prints."""
        display(self)
        return self
