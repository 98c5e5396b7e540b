"""What holds text or other widgets."""

from __future__ import annotations

from ipywidgets.base import Widget, element, on


class HTML(Widget):
    traits = {"value": ""}

    def __init__(self, value: str = "", **kwargs: object):
        super().__init__(value=str(value), **kwargs)

    def dom_build(self):
        return element("div", "w-html")

    def dom_show(self, name: str) -> None:
        self.element.innerHTML = str(self.value)


class Box(Widget):
    traits = {"children": ()}
    cls = "w-box"

    def __init__(self, children=(), **kwargs: object):
        super().__init__(children=tuple(children), **kwargs)

    def dom_build(self):
        return element("div", self.cls)

    def dom_show(self, name: str) -> None:
        self.element.replaceChildren(*(child.element for child in self.children))


class HBox(Box):
    cls = "w-box w-across"


class VBox(Box):
    cls = "w-box w-column"


class Tab(Box):
    traits = {"children": (), "titles": (), "selected_index": 0}

    def dom_build(self):
        made = element("div", "w-tabs")
        self.__dict__.update(_heads=element("div", "w-heads", role="tablist"), _body=element("div"))
        made.append(self._heads, self._body)
        return made

    def dom_show(self, name: str) -> None:
        heads = []
        for number, title in enumerate(self.titles):
            chosen = number == self.selected_index
            head = element(
                "button",
                "w-button" + " w-chosen" * chosen,
                title,
                role="tab",
                aria_selected=str(chosen).lower(),
            )
            on(head, "click", lambda _, number=number: setattr(self, "selected_index", number))
            heads.append(head)
        self._heads.replaceChildren(*heads)
        if self.children:
            self._body.replaceChildren(self.children[self.selected_index].element)
