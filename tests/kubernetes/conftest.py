"""Helpers of this folder are imported by their names."""

from __future__ import annotations
