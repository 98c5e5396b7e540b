import click

from workshop.cli.say import say
from workshop.client.reach import choose
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records, tunnel
from workshop.servers.machine import free_port


@click.command
@click.argument("name", required=False)
@click.option(
    "--login",
    metavar="USER@HOST",
    help="The cluster's login node, as for ssh. Without: on the cluster itself.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    help="On this machine; by default the first free one from 8000.",
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="On the cluster: print the commands for a laptop and VS Code.",
)
def command(name: str | None, login: str | None, port: int | None, only_print: bool) -> None:
    """Give the server NAME of a cluster an address of this machine, which stays when the server starts again elsewhere.

    On a laptop, with --login: by an ssh tunnel; `workshop.connect()` here finds the server while it is open. On the
    cluster, without: for programs that know only an address (connect() needs none). With --print and --login it opens
    nothing, and prints what to type on a laptop.
    """
    if login:
        tunnel.checked_login(login)
    if only_print and not login:
        raise BadInput(
            "--print needs --login.", "Give the login node as for ssh: --login you@login.cluster"
        )
    if only_print:
        for line in tunnel.explain(choose(name), login, port or 8000):
            say(line)
        return
    try:
        if login:
            _through(login, name, port)
        else:
            name, port = choose(name).name, port or free_port("127.0.0.1")
            words = f"✓ {name} has the address http://127.0.0.1:{port}/v1, with its own key. Ctrl-C takes it away."
            tunnel.forward(name, port, lambda: say(words, fg="green"))
    except KeyboardInterrupt:
        say("The tunnel is closed.")


def _through(login: str, name: str | None, port: int | None) -> None:
    record = tunnel.fetch(login, name)
    known = records.read(record.name)
    if known is not None and known.state != "failed":
        remedy = (
            f"If that is this one, it is reached without --login; else: workshop stop {record.name}"
        )
        raise WorkshopError(
            f"A server called {record.name!r} is known here already ({known.url}).", remedy
        )

    def ready(local) -> None:
        say(f"✓ {local.name} answers at {local.url}. Ctrl-C closes the tunnel.", fg="green")

    tunnel.open_tunnel(record, login, port, ready, lambda text: say(text, err=True))
