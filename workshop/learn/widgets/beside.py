"""Controls beside their picture; on a narrow page above it in two columns, so that both stay in view."""

from __future__ import annotations

from collections.abc import Iterable

import ipywidgets as widgets


def beside(rows: Iterable[tuple[widgets.Widget, ...]], picture: widgets.Widget) -> widgets.HBox:
    """Lay out a widget.

    Args:
        rows: each a control and what stands below it.
        picture: what the controls change. It gets three quarters of what is to spare.
    """
    groups = [widgets.VBox(row, layout=widgets.Layout(flex="1 1 250px", margin="0 0 5px 0")) for row in rows]
    controls = widgets.Box(groups, layout=widgets.Layout(flex="1 1 290px", flex_flow="row wrap", grid_gap="0 24px",
                                                         align_content="flex-start", align_items="flex-start"))
    right = widgets.VBox([picture], layout=widgets.Layout(flex="3 1 460px", min_width="330px"))
    return widgets.HBox([controls, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="20px"))
