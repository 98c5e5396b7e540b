"""The partitions of a cluster in sinfo's words: what a job can ask for there.

Nothing here judges a job: SLURM does, and what it has is told beside its answer.
"""

from dataclasses import dataclass

from workshop.errors import BadInput, WorkshopError
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import site as slurm_site

SINFO = "%P|%D|%G|%f|%a|%l|%s|%m|%c|%t"


@dataclass(frozen=True)
class Nodes:
    """Alike nodes of one partition; '' for what sinfo does not say."""

    partition: str
    is_default: bool
    count: int
    gres: str
    features: str = ""
    up: str = ""  # of the partition: up, down, drain, inact
    time_limit: str = ""  # of the partition: infinite, D-HH:MM:SS
    job_size: str = ""  # nodes that one job may have: 1-infinite
    memory_mb: str = ""
    cpus: str = ""
    state: str = ""  # idle, mix, alloc, drain, down*, …

    @property
    def available(self) -> bool:
        """False for nodes that an administrator has to bring back."""
        return not self.state.startswith(("down", "drain", "drng", "fail", "futr", "inval", "unk"))

    @property
    def gpu_types(self) -> set[str]:
        """SLURM's types of their GPUs; '' for GPUs without a type."""
        parts = filter(slurm_site.gpu_part, slurm_site.gres_parts(self.gres))
        return {slurm_site.typed_count(part)[0] for part in parts}


def of_cluster(cluster: str = "") -> list[Nodes]:
    """Return the nodes of all partitions. Raises WorkshopError: no controller answers."""
    rows: list[Nodes] = []
    for line in slurm_queue.ask(cluster, "sinfo", "--noheader", f"--format={SINFO}").splitlines():
        name, count, *rest = line.split("|")[:10] if line.count("|") >= 3 else ("", "")
        if count.isdigit():
            rows.append(Nodes(name.rstrip("*"), name.endswith("*"), int(count), *rest))
    return rows


def of_job(rows: list[Nodes], names: str) -> list[Nodes]:
    """Return the nodes of the partitions that a job names, or of the default one."""
    if names:
        return [row for row in rows if row.partition in names.split(",")]
    return [row for row in rows if row.is_default]


def gpu(names: str, cluster: str = "") -> tuple[str, str]:
    """Return the GPU of the partitions that a job names, by its name in the catalog.

    Returns: (GPU, ''), or ('', why SLURM does not tell it).
    """
    if not slurm_queue.available():
        return "", "no SLURM is here to name the GPUs"
    try:
        nodes = of_job(of_cluster(cluster), names)
    except WorkshopError:
        return "", "SLURM does not answer"
    where = " and ".join(dict.fromkeys(row.partition for row in nodes)) or names or "by default"
    types = set().union(*(row.gpu_types for row in nodes)) - {""}
    if len(types) > 1:
        return "", f"SLURM names several GPUs in {where}: {', '.join(sorted(types))}"
    for slurm_type in types:
        try:
            return slurm_site.known_gpu(slurm_type), ""
        except BadInput as error:
            return "", error.message.rstrip(".")
    return "", f"SLURM does not name the GPUs of the partition {where}"


def describe(names: str, cluster: str = "") -> tuple[str, bool]:
    """Return sentences on the partitions of a job, and whether all nodes are up ('': unknown)."""
    try:
        rows = of_cluster(cluster)
    except WorkshopError:
        return "", True
    chosen = of_job(rows, names)
    if not chosen:
        names = ", ".join(dict.fromkeys(row.partition for row in rows))
        return f"The partitions here are {names}.", True
    sentences: list[str] = []
    for name in dict.fromkeys(row.partition for row in chosen):
        sentences.append(_described([row for row in chosen if row.partition == name]))
    return " ".join(sentences), all(row.available for row in chosen)


def _described(rows: list[Nodes]) -> str:
    """Return the sentence about one partition."""
    first = rows[0]
    count = sum(row.count for row in rows)
    noun = "nodes"
    if count == 1:
        noun = "node"
    kinds: list[str] = []
    for row in rows:
        kinds.append(
            f"{row.count} ({row.state}) with {row.cpus} processors, {row.memory_mb} MB, "
            f"GRES {row.gres}, features {row.features}"
        )
    sentence = f"The partition {first.partition} is {first.up} and has {count} {noun}"
    if first.job_size not in ("", "1-infinite"):
        sentence += f", {first.job_size} for a job"
    if first.time_limit not in ("", "infinite"):
        sentence += f", for at most {first.time_limit}"
    return f"{sentence}: {'; '.join(kinds)}."
