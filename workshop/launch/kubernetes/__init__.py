"""Manifests of a plan, and what runs in their pods."""

from workshop.launch.kubernetes.case import Case, Options
from workshop.launch.kubernetes.render import code, manifests, overlay, render, write

__all__ = ["Case", "Options", "code", "manifests", "overlay", "render", "write"]
