"""The former name of `workshop.client`. Kept for one release; `from workshop import sampling` lasts."""
