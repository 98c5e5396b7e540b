"""No server is asked from a page: the name of the error is all that is needed of httpx."""


class HTTPError(Exception):
    pass
