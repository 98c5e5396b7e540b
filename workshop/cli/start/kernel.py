import click


@click.group()
def command() -> None:
    """The course's kernel, for a JupyterLab of another environment (OpenOnDemand)."""


@command.command
def install() -> None:
    """Let your other JupyterLabs find the course's kernel and show its widgets; copy the notebooks for you.

    It needs no administrator.
    """
    from workshop.lab import kernel

    for line in kernel.install():
        click.echo(f"✓ {line}")
