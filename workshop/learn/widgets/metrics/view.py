"""What a server says at /metrics while it works: requests running and waiting, tokens per second, KV-cache usage."""

from __future__ import annotations

import ipywidgets as widgets

from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError
from workshop.learn import html
from workshop.learn.widgets.controls import Watching
from workshop.learn.widgets.metrics.picture import picture

KEPT = 600  # looks: ten minutes at one a second


class MetricsPanel(Watching):
    """What a server says of itself at /metrics, drawn as it works.

    Requests that run and that wait, tokens a second (generated, and read as prompts), and the KV-cache usage in
    percent. vLLM counts; the panel looks every `every_s` seconds, in a thread, and divides differences by the time.

    >>> from workshop import MetricsPanel, connect
    >>> panel = MetricsPanel(connect(), every_s=0.5).start()    # ... send requests ...
    >>> looks = panel.stop()
    >>> 0 <= looks[-1].kv_cache_usage <= 1
    True

    Args:
        server: what connect() returns, or an address (its key: None).
        every_s: seconds between two looks.
    """

    def __init__(self, server, every_s: float = 1.0):
        if every_s < 0.05:
            wrong = f"Every {every_s} s would be work for the server itself."
            raise BadInput(wrong, "Look every 0.25 s or more seldom.")
        own = not isinstance(server, str)
        self._url = server.url if own else server
        self._key, self._proxy = (server.record.api_key, server.proxy) if own else (None, None)
        self.looks, self.picture = [], widgets.HTML(picture([]))
        super().__init__(self.picture, every_s=every_s)

    def look(self) -> Metrics | None:
        """Look once and draw; None if the server did not answer."""
        try:
            seen = metrics.fetch(self._url, self._key, proxy=self._proxy)
        except WorkshopError as error:
            self.picture.value = html.alert(error)
            return None
        self.looks = [*self.looks[-KEPT + 1 :], seen]
        self.picture.value = picture(self.looks)
        return seen

    def stop(self) -> list[Metrics]:
        """Stop looking; return what was seen."""
        if self._thread is not None:
            super().stop()
        return self.looks
