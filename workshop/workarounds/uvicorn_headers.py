"""uvicorn reads a request's headers without a limit if it parses HTTP with httptools, its first choice.

Its other parser, h11, has a limit (--h11-max-incomplete-event-size). A guard sees a request once its headers are read,
so an anonymous client could fill the memory before any key is checked.

Upstream: Kludex/uvicorn#157 (closed; the maintainer says that httptools' limit cannot be changed), and the pull request
#1684, closed without being merged.
Versions: uvicorn up to 0.54. Ends when: uvicorn's httptools protocol has a limit of its own.

Applied in `workshop/guard/auth.py`, when it is imported: a pod has that file and little else of the workshop.
"""
