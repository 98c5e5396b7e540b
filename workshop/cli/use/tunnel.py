import click

from workshop.cli.say import say
from workshop.errors import WorkshopError

LOGIN = "YOU@LOGIN-NODE"  # stands in the printed commands when --login is not given


@click.command
@click.argument("name", required=False)
@click.option(
    "--login",
    metavar="USER@HOST",
    help="The cluster's login node, as for ssh.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    help="The port of the laptop; by default the first free one from 8000.",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="On the cluster: print the commands for a laptop and VS Code.",
)
def command(name: str | None, login: str | None, port: int | None, only_print: bool) -> None:
    """Reach the server NAME of a cluster from your laptop.

    On the laptop, with --login: opens an ssh tunnel; `workshop.connect()` finds the server while it
    is open, also after the server has started again on another node. On the cluster: prints the
    `ssh -L` command to type on the laptop.
    """
    from workshop.client.reach import choose
    from workshop.servers import tunnel

    if login:
        tunnel.checked_login(login)
    if only_print or not login:
        for line in tunnel.explain(choose(name), login or LOGIN, port or 8000):
            say(line)
        return
    try:
        _through(login, name, port)
    except KeyboardInterrupt:
        say("The tunnel is closed.")


def _through(login: str, name: str | None, port: int | None) -> None:
    from workshop.servers import records, tunnel

    record = tunnel.fetch(login, name)
    own_record = records.read(record.name)
    if own_record is not None and own_record.state != "failed":
        remedy = (
            f"If that is this one, it is reached without --login; else: workshop stop {record.name}"
        )
        raise WorkshopError(
            f"A server called {record.name!r} is known here already ({own_record.url}).", remedy
        )

    def ready(local) -> None:
        say(f"✓ {local.name} answers at {local.url}. Ctrl-C closes the tunnel.", fg="green")

    tunnel.open_tunnel(record, login, port, ready, lambda text: say(text, err=True))
