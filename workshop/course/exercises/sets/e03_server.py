from urllib.parse import urlsplit

from workshop.course.exercises.judging import called
from workshop.course.exercises.sets import texts
from workshop.errors import WorkshopError
from workshop.servers import records

GPUS_PER_NODE, NODES = 8, 2
TEXTS = texts("e03_server")
FAILURES = TEXTS["server.causes"]
CAUSES, RIGHT, CLUES = FAILURES["causes"], FAILURES["right"], FAILURES["clues"]
CLUES_OF_LOG_C = TEXTS["server.cause"]["clues"]


def split(tp: int, pp: int) -> str | None:
    if (tp, pp) == (GPUS_PER_NODE, NODES):
        return None
    if tp * pp != GPUS_PER_NODE * NODES:
        gpus = f"the job has {GPUS_PER_NODE * NODES} GPUs"
        return f"their product is {tp * pp}, and {gpus}: the two have to be equal"
    return "tensor parallelism stays inside a node, and each node is one stage of layers"


def output_path(answer: str) -> str | None:
    path = answer.removeprefix("#SBATCH ").removeprefix("--output=").replace("%u", "ada")
    if "$" in path or path.startswith("~"):
        return "SLURM reads this line, not bash: $VARIABLES and ~ are not replaced in it"
    if "%x" not in path or "%j" not in path:
        return "the name and the number differ from job to job: %x and %j stand for them"
    written = path.replace("%x", "70b").replace("%j", "4711")
    if "%" in path.rpartition("/")[0]:
        folder = written.rpartition("/")[0]
        return f"SLURM makes no folder: without {folder} the job dies before its first line"
    if written != "/scratch/ada/70b_4711.out":
        return f"job 4711 would write to {written}"
    return None


def _urls() -> list[str]:
    """Return the address that connect() uses; where it asks which of several, those of all."""
    from workshop.client.client import connect  # openai takes 0.5 s to import

    try:
        return [connect().url]
    except WorkshopError:
        ready = records.ready()
        if not ready:
            raise
        return [record.url for record in ready]


def endpoint(answer: str) -> str | None:
    address = urlsplit(answer)
    for url in _urls():
        server = urlsplit(url)
        path = f"{server.path}/chat/completions"
        # Not the host: this machine has several names.
        if (address.port, address.path.rstrip("/")) == (server.port, path):
            return None
    if answer.lstrip("/") in ("v1/chat/completions", "chat/completions"):
        return "that is the path: the address of the server, llm.url, comes before it"
    if answer.endswith("/v1/completions"):
        return "that endpoint continues a text; a conversation goes to another one"
    if not answer.startswith("http"):
        return "an address begins with http://, as llm.url does"
    if "/v1/v1" in answer:
        return "llm.url ends in /v1 already"
    return f"{answer} is not it; list(llm.get('/openapi.json')['paths']) shows what the server has"


def cause(answer: str) -> str | None:
    word = str(called(answer, CAUSES))
    if word == RIGHT["C"]:
        return None
    if word not in CAUSES:
        return f"{answer!r} is no cause of the list: {', '.join(CAUSES)}"
    return CLUES_OF_LOG_C[word]


def causes(answer: dict) -> str | None:
    answer = {called(letter, RIGHT): called(cause, CAUSES) for letter, cause in answer.items()}
    for cause in answer.values():
        if cause not in CAUSES:
            return f"{cause!r} is no cause of the list: {', '.join(CAUSES)}"
    wrong = [letter for letter in RIGHT if answer.get(letter) != RIGHT[letter]]
    if not wrong:
        return None
    right = f"{len(RIGHT) - len(wrong)} of {len(RIGHT)} are right"
    return f"{right}; log {wrong[0]}: {CLUES[wrong[0]]}"
