"""No server is asked from a page; what needs openai's client says so when it is used."""

from not_here import missing

__getattr__ = missing("openai")
