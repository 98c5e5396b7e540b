"""`workshop tunnel`: reach a cluster's server from a laptop."""

from __future__ import annotations

import click

from workshop.cli.say import say


@click.command
@click.argument("name", required=False)
@click.option("--login", required=True, metavar="USER@HOST", help="The cluster's login node, as for ssh.")
@click.option(
    "--port", type=click.IntRange(1024, 65535), help="On this machine; by default the first free one from 8000."
)
@click.option(
    "--print", "only_print", is_flag=True, help="On the cluster: print the commands for a laptop and VS Code."
)
def command(name: str | None, login: str, port: int | None, only_print: bool) -> None:
    """Open an ssh tunnel to the server NAME of a cluster; `workshop.connect()` here finds it while it is open.

    Run it on the laptop. With --print, run it on the cluster: it opens nothing, and prints what to type.
    """
    from workshop.errors import WorkshopError
    from workshop.launch import records, tunnel
    from workshop.use.finding import choose

    tunnel.checked_login(login)
    if only_print:
        for line in tunnel.explain(choose(name), login, port or 8000):
            say(line)
        return
    record = tunnel.fetch(login, name)
    known = records.read(record.name)
    if known is not None and known.state != "failed":
        raise WorkshopError(
            f"A server called {record.name!r} is known here already ({known.url}).",
            f"If that is this one, it is reached without a tunnel; else: workshop stop {record.name}",
        )

    def ready(local) -> None:
        say(f"✓ {local.name} answers at {local.url}. Ctrl-C closes the tunnel.", fg="green")

    try:
        tunnel.open_tunnel(record, login, port, ready)
    except KeyboardInterrupt:
        say("The tunnel is closed.")
