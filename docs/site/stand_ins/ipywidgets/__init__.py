"""The widgets of ipywidgets that the course uses, as elements of the page that Python runs in.

In a notebook a widget's state goes from the kernel to the browser and back; here both are one, so a trait that is set
is an attribute of an element that changes. Names, traits and what an option does are ipywidgets'.
"""

# ruff: noqa: F401      the names that ipywidgets has
from ipywidgets.base import Layout, Widget
from ipywidgets.containers import HTML, Box, HBox, Tab, VBox
from ipywidgets.controls import (
    BoundedFloatText,
    BoundedIntText,
    Button,
    FloatSlider,
    IntSlider,
    IntText,
    Play,
    Text,
    Textarea,
    link,
)
from ipywidgets.selections import Dropdown, RadioButtons, SelectionSlider, ToggleButtons
