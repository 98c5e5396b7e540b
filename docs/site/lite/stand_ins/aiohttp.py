"""aiohttp is compiled for no browser; what needs it says so when it is used."""

from not_here import missing

__getattr__ = missing("aiohttp")
