import sys

import click

from workshop.cli.say import Bar, json_option, say, say_json
from workshop.errors import WorkshopError


@click.command
@click.argument("model")
@click.option(
    "--to",
    "--download-dir",
    "to",
    metavar="FOLDER",
    help="Folder of the models that every node sees, by default WORKSHOP_MODELS; the model gets one of its own in it.",
)
@click.option(
    "--verify-only", is_flag=True, help="Check what is there; download nothing, ask nobody."
)
@click.option(
    "--checksums", is_flag=True, help="Compare SHA-256 with the Hub's as well (reads everything)."
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Also the model's own Python files, which `vllm serve --trust-remote-code` runs as you. Only for a model whose "
    "classes vLLM does not have (auto_map in its config.json or tokenizer_config.json). Read them first.",
)
@json_option('{"ok", "folder", "shards", "bytes", "problems", "notes"}')
def command(
    model: str,
    to: str | None,
    verify_only: bool,
    checksums: bool,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Download MODEL (a Hub id, a catalog name, or 70b, 405b, …) to a shared folder.

    Run it again, and it goes on where it ended.

    For a login node: compute nodes rarely have internet, and jobs then run offline. Gated models
    need their licence accepted on the model's page, and a token of that account: HF_TOKEN, or you
    are asked.
    """
    from huggingface_hub import get_token

    from workshop.servers.host.disk import refuse_closed
    from workshop.servers.slurm.submit.recipes import model_of
    from workshop.servers.weights import hub as prefetch_hub
    from workshop.servers.weights import prefetch
    from workshop.servers.weights.model_id import hub_id

    to = to or _models_folder()
    hub = hub_id(model_of(model))
    folder, remote = prefetch.target_folder(hub, to), None
    if not verify_only:
        refuse_closed(folder, prefetch_hub.ROOM)
        remote, token = _look_up(hub, get_token(), trust_remote_code)
        prefetch.refuse_small_disk(remote, folder)
        say(f"{hub}: {remote.bytes / 1e9:.1f} GB in {len(remote.files)} files → {folder}", err=True)
        with Bar(hub.split("/")[-1]) as bar:
            prefetch.download(remote, folder, token, bar)
    with Bar("Checking") as bar:
        report = prefetch.verify(folder, remote, checksums=checksums, report=bar)
    if as_json:
        say_json({"ok": report.ok, **vars(report), "folder": str(report.folder)})
    else:
        _show(report, model, to)
    sys.exit(0 if report.ok else 1)


def _models_folder() -> str:
    """Return the folder of the site's models; the error names the option of this command, too."""
    from workshop.servers.slurm import site

    try:
        return str(site.models_folder())
    except WorkshopError as error:
        raise WorkshopError(
            error.message, f"Give the folder: --to FOLDER. {error.remedy}"
        ) from None


def _look_up(hub: str, token: str | None, trust_remote_code: bool):
    """Ask the Hub; if it wants a token and there is none, ask the person, who is told what for."""
    from workshop.servers.weights import prefetch

    try:
        return prefetch.look_up(hub, token, trust_remote_code=trust_remote_code), token
    except WorkshopError as error:
        if token or not sys.stdin.isatty() or "token" not in error.remedy:
            raise
        say(f"{error.message}\n{error.remedy}", err=True)
        token = click.prompt("Token (not shown, not kept)", hide_input=True, err=True)
        return prefetch.look_up(hub, token, trust_remote_code=trust_remote_code), token


def _show(report, model: str, to: str) -> None:
    for problem in report.problems:
        say(f"✗ {problem}", fg="red")
    if report.problems:
        say(
            f"→ Remove those files if they are there, then again: workshop prefetch {model} --to {to}"
        )
    else:
        say(
            f"✓ {report.folder}: {report.shards} shards, {report.bytes / 1e9:.1f} GB, all whole",
            fg="green",
        )
    for note in report.notes:
        say(f"· {note}")
