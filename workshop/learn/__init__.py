"""The former name of `workshop.course`. Kept for one release; `from workshop import check` lasts."""
