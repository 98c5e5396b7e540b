"""Say how this copy of the workshop was installed, where its course lies, and word remedies so that they fit it.

A checkout has a Makefile. An installed wheel has none: its users run pip. Which `site.sh` is theirs to edit is
for `workshop.servers.slurm.site` to say.

>>> from workshop import install_words
>>> install_words.adapted("Run `make workshop`.", checkout=False)
"Run `pip install 'distributed-inference-workshop[local]'`."
"""

from pathlib import Path

from workshop.errors import WorkshopError
from workshop.this_package import FOLDER

DISTRIBUTION = "distributed-inference-workshop"
REPOSITORY = FOLDER.parent
# What a remedy says for a checkout, and what stands for it elsewhere; the longer texts come first.
WHEEL_WORDS = {
    "make test installs it": f"pip install '{DISTRIBUTION}[dev]'",
    "make workshop": f"pip install '{DISTRIBUTION}[local]'",
}


def course_folder(part: str = "notebooks") -> Path:
    """Return the course's own folder: of the checkout, or of the installed package.

    Raises WorkshopError: it is not installed.
    """
    # A wheel's own first: beside it may lie a package of that name (`kubernetes`, the client).
    for folder in (REPOSITORY / "workshop" / "_course" / part, REPOSITORY / part):
        if folder.is_dir():
            return folder
    raise WorkshopError(
        f"The course's folder {part} is not installed.", "Install the workshop from its repository."
    )


def is_checkout() -> bool:
    """Return True if this package lies in its repository, where `make` and slurm/ are."""
    return (REPOSITORY / "Makefile").is_file() and (REPOSITORY / "slurm" / "site.sh").is_file()


def setup_command() -> str:
    """Return the command that installs vLLM for the CPU into this environment."""
    return adapted("make workshop")


def adapted(text: str, checkout: bool | None = None) -> str:
    """Return a remedy with commands that exist here; `checkout`: by default what this copy is."""
    if is_checkout() if checkout is None else checkout:
        return text
    for checkout_words, wheel_words in WHEEL_WORDS.items():
        text = text.replace(checkout_words, wheel_words)
    return text
