"""How far a batch is, in a notebook: `batch.run(…, report=BatchProgress())`."""

from __future__ import annotations

import html
from dataclasses import replace

import ipywidgets as widgets
from IPython.display import display

from workshop.batch.progress import Progress, words
from workshop.learn.widgets import style


def progress_html(progress: Progress) -> str:
    """Return a bar of answered and failed rows, and one line of rates, KV-cache usage and time left."""
    done, failed = (100 * count / max(progress.rows, 1) for count in (progress.done, progress.errors))
    bar = (f'<div role="progressbar" aria-valuenow="{round(done)}" aria-valuemin="0" aria-valuemax="100" '
           f'aria-label="rows answered" style="display:flex;background:{style.FREE};border-radius:6px;height:14px;'
           f'overflow:hidden;margin:4px 0"><div style="width:{done:.2f}%;background:{style.GOOD}"></div>'
           f'<div style="width:{failed:.2f}%;background:{style.BAD}"></div></div>')
    kv = "" if progress.kv_cache_usage is None else (
        f'<div style="display:flex;align-items:center;gap:8px;font-size:12px"><span>KV cache</span>'
        f'<div style="background:{style.FREE};border-radius:4px;height:7px;width:160px"><div style="height:7px;'
        f'border-radius:4px;background:{style.KV_CACHE};width:{100 * progress.kv_cache_usage:.1f}%"></div></div>'
        f"<span>{100 * progress.kv_cache_usage:.0f} % · {progress.running} running · {progress.waiting} waiting"
        "</span></div>")
    count = f"<b>{progress.done:,} of {progress.rows:,} rows answered</b>"
    line = html.escape(words(replace(progress, kv_cache_usage=None)))      # its bar says it
    return style.panel(f'{count}{bar}{kv}<div style="color:{style.MUTED};font-size:12px">{line}</div>')


class BatchProgress(widgets.VBox):
    """View only; call it with each Progress. Shows itself at the first call, if no cell did."""

    def __init__(self) -> None:
        self.picture, self._shown, self.history = widgets.HTML(), False, []
        super().__init__([self.picture])

    def __call__(self, progress: Progress) -> None:
        self.history = [*self.history[-999:], progress]
        self.picture.value = progress_html(progress)

    def show(self) -> BatchProgress:
        """Display it now, above what the cell prints."""
        display(self)
        return self
