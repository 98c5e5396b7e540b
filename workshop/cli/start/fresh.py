import click


@click.command
@click.argument("notebook")
def command(notebook: str) -> None:
    """Put a fresh copy of NOTEBOOK (01_memory, 1 or memory) in place; yours is kept beside it."""
    from workshop.lab import learner_copies

    copy, previous = learner_copies.fresh(notebook)
    message = f"✓ {copy} is fresh."
    if previous:
        message += f" Yours is kept as {previous.name}."
    click.echo(message)
