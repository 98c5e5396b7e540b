"""The former place of `workshop.servers.guard.auth`, which a server's `--middleware` may still name."""

from workshop.servers.guard.auth import RequireKey as RequireKey
