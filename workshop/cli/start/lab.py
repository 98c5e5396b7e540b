from __future__ import annotations

from typing import TYPE_CHECKING

import click

from workshop import own_packages
from workshop.cli.say import Bar

if TYPE_CHECKING:
    from workshop.servers.progress import TaskProgress


@click.command
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="JupyterLab's; by default the first free one from 8888.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address that JupyterLab listens on."
)
@click.option("--no-server", is_flag=True, help="Open the notebooks only.")
@click.option("--no-browser", is_flag=True, help="Print the address, open no browser.")
def command(port: int | None, host: str, no_server: bool, no_browser: bool) -> None:
    """Open JupyterLab on your copy of the notebooks, with a server behind it; Ctrl-C ends both."""
    from workshop.lab import session

    bar: Bar | None = None

    def report(progress: TaskProgress) -> None:
        nonlocal bar
        bar = bar or Bar("Starting the server")
        bar(progress)

    def say(text: str) -> None:
        nonlocal bar
        if bar:
            bar.close()
            bar = None
        click.echo(text)

    own_packages.forget_foreign_python()
    try:
        session.run(
            port=port,
            host=host,
            server=not no_server,
            browser=not no_browser,
            report=report,
            say=say,
        )
    finally:
        if bar:
            bar.close()
