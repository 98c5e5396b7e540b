"""No server is asked from a page: of httpx the name of its error is enough; what needs more says so when it is used."""

from not_here import missing

__getattr__ = missing("httpx")


class HTTPError(Exception):
    pass
