"""Remove the names of people, machines and places from a log: `workshop reconcile LOG --anonymise`.

Pure: the text of a log in, a text out.

The figures stay, and so do the names of models that the catalog has, so that the result reconciles
as the log did. Each machine and address gets a name of its own, since ranks are told apart by them.
Applied twice, it changes nothing more.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable

from inference_planner.catalog import list_models, load_model

from workshop.engine import log as engine_log
from workshop.engine.log.facts import EngineLog
from workshop.engine.log.lines import HEADER
from workshop.engine.reconcile_model import similar_names

Match = re.Match[str]

KEY = "***"
PROMPT = "(removed)"
FOLDER = "/path"
FILE = "name"
# values that stay: what a machine calls itself, and what names nobody
LOCAL = {"0.0.0.0", "127.0.0.1", "::", "::1", "localhost", "255.255.255.255"}
NOBODY = {
    *("root", "user", "users", "ubuntu", "vllm", "runner", "home", "data", "model", "models"),
    *("shared", "public", "workspace", "app", "server", "host", "localhost", "none", "null"),
    *("true", "false", "default", "python", "name", "path", "container", "info", "warning", "error"),
    *("debug", "engine", "enginecore", "worker", "apiserver", "serve"),
}  # fmt: skip
SHORTEST_NAME = 3
# ranges of addresses for documentation: RFC 3849 and RFC 5737, whose 198.51.100.0/24 alone is too
# small
DOCUMENTATION_NETWORKS = (
    ipaddress.ip_network("2001:db8::/32"),
    ipaddress.ip_network("192.0.2.0/24"),
    ipaddress.ip_network("198.51.0.0/16"),
)

TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{12,}|xox[abprs]-[\w-]{8,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|nvapi-[\w-]{12,}"
    r"|eyJ[\w-]{8,}\.[\w.-]{8,})"
)
BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)([\w.~+/=-]{6,})")
SECRET_NAME = (
    r"(?:[\w-]*(?:api|auth|access|secret|private|hf|hub|wandb|github|gitlab|ngc|openai|refresh"
    r"|bearer|session)[-_]?"
    r"(?:keys?|token)|[\w-]*(?:password|passwd|secret|credentials?)|authorization|cookie)"
)
SECRET = re.compile(
    rf"""(?i)((?<![\w-])(?:--)?{SECRET_NAME}\\?['"]?(?:\s*[=:]\s*|\s+(?=[^\s=:]*\d))\[?)"""
    r"""(\\?['"])?(?!None\b|null\b|True\b|False\b|\*\*\*)([^\s'",;\]})\\]{4,})"""
)
USER_INFO = re.compile(r"(?<=://)[^\s/@'\"]{1,200}@")
URL = re.compile(
    r"\b((?:https?|wss?|grpc|tcp|s3|gs|ftp)://)([^\s/:'\"<>)\],]+)(:\d{1,5})?(/[^\s'\"<>)\],]*)?"
)
PUBLIC_HOSTS = (
    *("huggingface.co", "hf.co", "github.com", "vllm.ai", "pytorch.org", "nvidia.com"),
    *("python.org", "readthedocs.io", "modelscope.cn", "pypi.org", "docker.com", "ray.io"),
    *("openai.com", "pydantic.dev", "arxiv.org"),
)  # fmt: skip
MODEL_HOSTS = ("huggingface.co", "hf.co", "modelscope.cn")  # whose paths name models
MAIL = re.compile(r"(?<![\w.+/-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
LOGIN = re.compile(r"(?<![\w.+/-])([A-Za-z_][\w.-]*)@([A-Za-z][\w.-]*)(?=[:\s\]])")
IPV4 = re.compile(
    r"(?<![\w.=-])(?<!version )(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d|\.\w)"
    r"|(?<=ip-)\d{1,3}(?:-\d{1,3}){3}\b"
)
ASSIGNED_IPV4 = re.compile(r"(?<=[\w]=)(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
MAC = re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")
DOMAIN = re.compile(
    r"(?<![\w.@/\\-])((?:[A-Za-z0-9](?:[\w-]{0,61}\w)?\.)+"
    r"(?:com|org|net|edu|gov|mil|de|fr|uk|ch|nl|at|it|es|eu|us|cn|jp|in|io|ai|cloud|dev"
    r"|internal|local|lan|corp|intra|hpc|cluster))"
    r"(?![\w(.-]*\w)"
)
QUOTED_PATH = re.compile(
    r"""(?P<quote>['"])(?P<path>(?:~|/|[A-Za-z]:\\{1,2})[^'"\n]{2,1000})(?P=quote)"""
)
PATH = re.compile(r"(?<![\w/.:<>~*$])(?:~|/(?=[\w.~-]))[\w.@+~:%-]*(?:/[\w.@+=~%:-]+)+/?")
WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\{1,2}(?:[^\s\\'\"<>|]+\\{1,2})*[^\s\\'\"<>|,;)]*")
# what servers answer to, and what every Linux has
KEPT_PATHS = re.compile(
    r"/(?:v1|v2|health|ping|load|metrics|docs|redoc|openapi\.json|tokenize|detokenize|version"
    r"|invocations|pooling|classify"
    r"|score|rerank|embed|dev|proc|sys|scale_elastic_ep|is_scaling_elastic_ep|inference"
    r"|abort_requests|reset_\w+|sleep"
    r"|wake_up|is_sleeping|collective_rpc|pause|resume|is_paused|generative_scoring|render)(?:/|$)"
)
PACKAGES = re.compile(
    r"^.*?[/\\](?=(?:site|dist)-packages[/\\]|(?:vllm|torch)[/\\][\w/\\]+\.pyx?$)"
)
KEPT_FILES = re.compile(
    r"(?:(?:model|pytorch_model|consolidated)[\w.-]*\.(?:safetensors|bin|pth|json)"
    r"|(?:config|tokenizer\w*|generation_config"
    r"|params|preprocessor_config)\.(?:json|model)|E=\d[\w,=.\[\]-]*\.json)$"
)
USER_FOLDER = re.compile(
    r"(?:/(?:home|Users|users|u|scratch/users)/|[A-Za-z]:\\{1,2}Users\\{1,2})([\w.@-]+)"
)
SHELL_USER = re.compile(r"(?<![\w-])(?:USER|LOGNAME|USERNAME|SUDO_USER)\s*[=:]\s*['\"]?([\w.@-]+)")
# in front of lines: journald and syslog, compose, kubectl, srun
SYSLOG = re.compile(
    r"^\s*(?:\w{3,5}\.? [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-][\d:]+)?) "
    r"([\w.-]+) [\w./@-]+(?:\[\d+\])?: ",
    re.MULTILINE,
)
COMPOSE = re.compile(r"^([A-Za-z][\w.-]*)\s+\|\s", re.MULTILINE)
POD = re.compile(r"(?<=\[pod/)([^\]/\s]+)/([^\]/\s]+)(?=\])")
STERN = re.compile(
    r"^([a-z0-9][a-z0-9.-]*-[a-z0-9]{4,}(?:-[a-z0-9]{5})?|[a-z][\w.-]*-\d+) ([a-z][\w-]*) "
    r"(?=[\w(\[{])",
    re.MULTILINE,
)
# what stands in front of the words of vLLM's logger, and the words there that name nobody
FRONT = re.compile(
    r"^(?P<front>[^\n{(]{1,300}?)(?=(?:\([^)\n]{0,200}pid=\d+[^)\n]{0,100}\)\s{0,4})*"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"[ \xa0]\d\d-\d\d[ \xa0]\d\d:\d\d)",
    re.MULTILINE,
)
FRONT_WORD = re.compile(r"(?<![\w.-])[A-Za-z][\w-]*(?:\.[\w-]+)*(?![\w-])")
# characters of a line without vLLM's words in which a collector's names are looked for
MOST_FRONT = 100
FRONT_WORDS = {
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "sept", "oct", "nov"),
    *("dec", "mon", "tue", "wed", "thu", "fri", "sat", "sun", "utc", "gmt", "cet", "cest"),
    *("est", "edt", "pst", "pdt", "stdout", "stderr", "output", "debg", "stream", "log"),
    *("message", "info", "warn", "error", "debug", "pod", "rank", "default", "run", "ts"),
}  # fmt: skip
HOST_FIELD = re.compile(
    r"""(?i)(?<![\w-])((?:host_?name|_hostname|host|node_?name|nodename|node_ip|master_addr"""
    r"""|head_node(?:_ip)?|hosting|machine"""
    r"""|data_parallel_address|data_parallel_master_ip|pod(?:_name)?|pod_ip|namespace(?:_name)?"""
    r"""|container(?:_name|_id)?"""
    r"""|docker_id|instance(?:_id)?|deployment|cluster_name|SLURM(?:D)?_NODE(?:LIST|NAME)"""
    r"""|SLURM_JOB_NODELIST)\\?['"]?\s*[=:]\s*)"""
    r"""(\\?['"])?([A-Za-z][\w.-]{1,200}|[0-9a-f]{12,64})(?=[\s'",)}\]\\]|$)"""
)
USER_FIELD = re.compile(
    r"""(?i)((?<![\w-])(?:user(?:_?name)?|owner|email|account|logname"""
    r"""|SLURM_JOB_(?:USER|ACCOUNT)|project)\\?['"]?\s*[=:]\s*)"""
    r"""(\\?['"])?([A-Za-z_][\w.@-]{1,200})(?=[\s'",)}\]\\]|$)"""
)
SLURM_NODE = re.compile(
    r"(?i)((?:\bJOB \d+ ON |\bsrun: error: |\blaunched on |\brunning on (?:node|host) |\bnode:? ))"
    r"([a-z][\w.-]*\d[\w.-]*)"
)
JOB = re.compile(
    r"(?i)(\b(?:SLURM_(?:ARRAY_)?JOB_?ID|job_?id|job|PBS_JOBID|LSB_JOBID)\\?['\"]?"
    r"(?:\s*[=:]\s*|\s+)['\"]?)(\d{3,})\b"
)
UUID = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|(?<=cmpl-)[0-9a-f]{16,32}\b", re.IGNORECASE
)
GPU_UUID = re.compile(r"\b(?:GPU|MIG)-(?=[0-9a-f]{8}-)", re.IGNORECASE)
NO_UUID = "00000000-0000-0000-0000-000000000000"
PROMPTS = re.compile(
    r"""((?:\bprompt|'prompt'|"prompt"|\bcontent|'content'|"content"|\boutput|generated_text)"""
    r"""\s*[:=]\s*)"""
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?=\s*[,})\]])"""
)
PROMPT_TOKENS = re.compile(r"(prompt_token_ids\s*[:=]\s*)\[[\d,\s]+\]")
# folders of every Linux, and one that everybody has
COMMON_FOLDERS = {"tmp", "usr", "opt", "root", "bin", "mnt", "var", "home", "models"}
LORA_NAME = re.compile(r"((?:LoRAModulePath|BaseModelPath)\((?:name=))(['\"])([^'\"]+)")


def anonymise(text: str) -> tuple[str, Counter[str]]:
    """Return a log without the names of people and places, and the number of removals of each kind.

    Raises BadInput: this is no log of vLLM.
    """
    return _Anonymiser(engine_log.parse(text)).apply(text)


class _Anonymiser:
    """The names in one log, each with its alias, and the number of replacements of each kind."""

    def __init__(self, log: EngineLog) -> None:
        self.models = _private_models(log)
        self.removed: Counter[str] = Counter()
        self._aliases: dict[tuple[str, str], str] = {}

    def apply(self, text: str) -> tuple[str, Counter[str]]:
        users = _users(text)
        hosts = _hosts(text)
        pods = _matches(STERN, 1, text)
        text = self._sub(PROMPTS, text, "prompts", lambda m: f"{m[1]}'{PROMPT}'")
        text = self._sub(PROMPT_TOKENS, text, "prompts", lambda m: f"{m[1]}[]")
        text = self._sub(TOKENS, text, "keys", lambda m: KEY)
        text = self._sub(BEARER, text, "keys", lambda m: m[1] + KEY)
        text = self._sub(SECRET, text, "keys", lambda m: f"{m[1]}{m[2] or ''}{KEY}")
        text = self._sub(USER_INFO, text, "keys", lambda m: "")
        text = self._names(text, self.models, "model names", "model")
        text = self._sub(
            LORA_NAME, text, "model names", lambda m: m[1] + m[2] + self._alias("adapter", m[3])
        )
        text = self._sub(MAIL, text, "e-mail addresses", lambda m: "user@mail.invalid")
        text = self._sub(URL, text, "addresses", self._url)
        text = self._sub(
            QUOTED_PATH, text, "paths", lambda m: m["quote"] + _path(m["path"]) + m["quote"]
        )
        text = self._sub(WINDOWS_PATH, text, "paths", lambda m: _path(m[0]))
        text = self._sub(PATH, text, "paths", lambda m: _path(m[0]))
        text = self._sub(LOGIN, text, "user names", self._login)
        text = self._sub(MAC, text, "addresses", lambda m: "02:00:00:00:00:00")
        for pattern in (ASSIGNED_IPV4, IPV4, IPV6):
            text = self._sub(pattern, text, "addresses", lambda m: self._address(m[0]))
        text = self._sub(SYSLOG, text, "host names", lambda m: self._group(m, 1, "host"))
        text = self._sub(COMPOSE, text, "host names", lambda m: self._group(m, 1, "container"))
        text = self._sub(POD, text, "host names", self._pod)
        text = self._sub(
            STERN,
            text,
            "host names",
            lambda m: f"{self._alias('pod', m[1])} {self._alias('container', m[2])} ",
        )
        text = self._sub(SLURM_NODE, text, "host names", lambda m: m[1] + self._alias("host", m[2]))
        text = self._sub(
            HOST_FIELD,
            text,
            "host names",
            lambda m: f"{m[1]}{m[2] or ''}{self._alias('host', m[3])}",
        )
        text = self._sub(
            USER_FIELD,
            text,
            "user names",
            lambda m: f"{m[1]}{m[2] or ''}{self._alias('user', m[3])}",
        )
        text = self._names(text, pods, "host names", "pod")
        text = self._fronts(text)
        text = self._sub(DOMAIN, text, "host names", lambda m: self._domain(m[1]))
        text = self._names(text, users, "user names", "user")
        text = self._names(text, hosts, "host names", "host")
        text = self._sub(JOB, text, "job ids", lambda m: m[1] + re.sub(r"\d", "0", m[2]))
        text = self._sub(GPU_UUID, text, "ids", lambda m: m[0])
        text = self._sub(UUID, text, "ids", lambda m: _empty_id(m[0]))
        return text, self.removed

    def _sub(
        self, pattern: re.Pattern[str], text: str, kind: str, replace: Callable[[Match], str]
    ) -> str:
        """Replace the matches of a pattern, and count those that changed."""

        def changed(match: Match) -> str:
            result = replace(match)
            if result != match[0]:
                self.removed[kind] += 1
            return result

        return pattern.sub(changed, text)

    def _fronts(self, text: str) -> str:
        """Replace the names that collectors put in front of lines, a traceback's lines included."""
        lines_with_word: Counter[str] = Counter()
        for match in FRONT.finditer(text):
            lines_with_word.update(set(FRONT_WORD.findall(match["front"])))
        names: set[str] = set()
        repeated: set[str] = set()
        for word, count in lines_with_word.items():
            if word.lower() in FRONT_WORDS:
                continue
            names.add(word)
            if count > 1:
                repeated.add(word)
        if not names:
            return text

        def without_names(match: Match) -> str:
            return FRONT_WORD.sub(lambda word: self._alias_of(word[0], names), match["front"])

        text = self._sub(FRONT, text, "host names", without_names)
        if not repeated:
            return text
        lines = text.split("\n")
        for place, line in enumerate(lines):
            if HEADER.search(line) is None and not line.lstrip().startswith("{"):
                begin = self._sub(
                    FRONT_WORD,
                    line[:MOST_FRONT],
                    "host names",
                    lambda word: self._alias_of(word[0], repeated),
                )
                lines[place] = begin + line[MOST_FRONT:]
        return "\n".join(lines)

    def _alias_of(self, word: str, names: set[str]) -> str:
        """Return a host's alias for a word that is one of the names, else the word itself."""
        if word in names:
            return self._alias("host", word)
        return word

    def _names(self, text: str, names: set[str], kind: str, word: str) -> str:
        """Replace names wherever they stand as whole words, the longest first."""
        for name in sorted(names, key=lambda name: (-len(name), name)):
            pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-]|\.\w)")
            text = self._sub(pattern, text, kind, lambda m: self._alias(word, m[0]))
        return text

    def _alias(self, word: str, name: str) -> str:
        """Return the alias of a name: host-1, host-2, … in the order in which they come."""
        plain = name.lower().strip(".")
        if plain in NOBODY or plain in LOCAL or len(plain) < SHORTEST_NAME or _is_alias(plain):
            return name
        key = word, plain
        if key not in self._aliases:
            self._aliases[key] = f"{word}-{self._next_number(word)}"
        return self._aliases[key]

    def _next_number(self, word: str) -> int:
        """Return the number of the next alias of a kind, from 1."""
        prefixes = [key[0] for key in self._aliases]
        return prefixes.count(word) + 1

    def _address(self, address: str) -> str:
        """Return an address for documentation, another one for each address; local ones stay."""
        dotted = address
        if "." not in address and ":" not in address:
            dotted = address.replace("-", ".")
        try:
            parsed = ipaddress.ip_address(dotted)
        except ValueError:
            return address
        if dotted in LOCAL or _is_documentation(parsed):
            return address
        if parsed.version == 6 and "::" not in dotted and dotted.count(":") < 7:
            return address
        word = f"address{parsed.version}"
        key = word, str(parsed)
        if key not in self._aliases:
            self._aliases[key] = _documentation_address(parsed.version, self._next_number(word))
        alias = self._aliases[key]
        if dotted != address:  # it was written with hyphens
            return alias.replace(".", "-")
        return alias

    def _url(self, match: Match) -> str:
        """Return a URL without a private host, and without a path that names anything private."""
        scheme = match[1]
        host = match[2]
        port = match[3] or ""
        path = match[4] or ""
        is_public = host.lower().endswith(PUBLIC_HOSTS)
        if is_public and not host.lower().endswith(MODEL_HOSTS):
            return match[0]
        keeps_path = path in ("", "/") or KEPT_PATHS.match(path)
        if is_public:
            if not keeps_path:
                path = _path(path)
        else:
            host = self._host(host)
            if not keeps_path:
                path = f"/{FILE}"
        return f"{scheme}{host}{port}{path}"

    def _host(self, host: str) -> str:
        if re.fullmatch(r"[\d.]+", host):
            return self._address(host)
        if host.startswith("["):
            return f"[{self._address(host.strip('[]'))}]"
        return self._alias("host", host)

    def _domain(self, domain: str) -> str:
        if domain.lower().endswith((*PUBLIC_HOSTS, "mail.invalid")):
            return domain
        return self._alias("host", domain)

    def _login(self, match: Match) -> str:
        return f"{self._alias('user', match[1])}@{self._alias('host', match[2])}"

    def _group(self, match: Match, group: int, word: str) -> str:
        """Return a match whose group is replaced by its alias."""
        begin = match.start(group) - match.start()
        end = match.end(group) - match.start()
        return match[0][:begin] + self._alias(word, match[group]) + match[0][end:]

    def _pod(self, match: Match) -> str:
        return f"{self._alias('pod', match[1])}/{self._alias('container', match[2])}"


def _is_alias(name: str) -> bool:
    return re.fullmatch(r"(?:host|user|model|adapter|container|pod)-\d+", name) is not None


def _is_documentation(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(address in network for network in DOCUMENTATION_NETWORKS)


def _documentation_address(version: int, number: int) -> str:
    """Return the address for documentation of a number; IPv4 has about 65,000 of them."""
    if version == 6:
        return f"2001:db8::{number:x}"
    if number < 255:
        return f"192.0.2.{number}"
    return f"198.51.{number // 255}.{number % 255}"


def _empty_id(identifier: str) -> str:
    """Return an id of the same form, with zeros alone."""
    if "-" in identifier:
        return NO_UUID
    return "0" * len(identifier)


def _path(path: str) -> str:
    """Return a path without its folders.

    The name of a known model, of a package's file or of a checkpoint's file stays.
    """
    if KEPT_PATHS.match(path) or path.rstrip("/") in ("", FOLDER, f"{FOLDER}/{FILE}"):
        return path
    parts = [part for part in re.split(r"[/\\]+", path) if part]
    if len(parts) < 2 and not path.startswith("~") and ":" not in path:
        if _looks_like_name(parts[0]) and not _is_known_model(parts[0]):
            return f"{FOLDER}/{FILE}"
        return path
    package = PACKAGES.match(path)
    if package:
        return f"{FOLDER}/{path[package.end() :]}"
    for part in reversed(parts):
        if part.startswith("models--"):
            part = part.rpartition("--")[2]
        if _is_known_model(part):
            return f"{FOLDER}/{part}"
    last = parts[-1]
    if KEPT_FILES.match(last):
        return f"{FOLDER}/{last}"
    return f"{FOLDER}/{FILE}"


def _looks_like_name(part: str) -> bool:
    return bool(re.search(r"[A-Za-z]{3}", part)) and part not in COMMON_FOLDERS


def _is_known_model(part: str) -> bool:
    """Return True for an alias, and for the name of a catalog's model or of its repository."""
    return _is_alias(part) or bool(similar_names(part))


def _hub_ids() -> set[str]:
    """Return the Hub ids of the catalog's models, in lower case."""
    hub_ids: set[str] = set()
    for name in list_models():
        for hub_id in load_model(name).hub_ids:
            hub_ids.add(hub_id.lower())
    return hub_ids


def _logged_models(log: EngineLog) -> list[str]:
    """Return every name or path by which a log calls its model."""
    values: list[object] = [log.model]
    for arguments in (log.args, log.config):
        for argument in ("model", "model_tag", "tokenizer", "hf_config_path"):
            values.append(arguments.get(argument))
        served = arguments.get("served_model_name")
        if isinstance(served, list):
            values += served
        else:
            values.append(served)
    names: list[str] = []
    for value in values:
        if isinstance(value, str) and value.strip():
            names.append(value.strip().strip("'\""))
    return names


def _private_models(log: EngineLog) -> set[str]:
    """Return the names of models in a log that the catalog does not have.

    Of a path only the last part counts; `_path` removes the others.
    """
    hub_ids = _hub_ids()
    private: set[str] = set()
    for name in _logged_models(log):
        for part in _naming_parts(name, hub_ids):
            is_private = len(part) >= SHORTEST_NAME and not _is_known_model(part)
            if is_private and part.lower() not in NOBODY:
                private.add(part)
    return private


def _naming_parts(name: str, hub_ids: set[str]) -> list[str]:
    """Return the parts of a model's name, Hub id or path that may tell whose it is."""
    if name.startswith(("/", "~", ".")) or re.match(r"[A-Za-z]:\\", name):
        return [re.split(r"[/\\]", name.rstrip("/\\"))[-1]]
    if name.lower() in hub_ids:
        return []
    owner, _, last = name.rpartition("/")
    if "/" not in name or not _is_known_model(last):
        return [name, last]
    public_owners = {hub_id.partition("/")[0] for hub_id in hub_ids}
    if owner.lower() in public_owners:
        return []
    return [owner]


def _matches(pattern: re.Pattern[str], group: int, text: str) -> set[str]:
    """Return all that one group of a pattern matches in a text."""
    return {match[group] for match in pattern.finditer(text)}


def _users(text: str) -> set[str]:
    """Return the names of users that paths and prompts show."""
    names = _matches(USER_FOLDER, 1, text)
    names |= _matches(SHELL_USER, 1, text)
    names |= _matches(LOGIN, 1, text)
    return set(filter(_is_private, names))


def _hosts(text: str) -> set[str]:
    """Return the names of machines that stand in front of lines, in prompts and in arguments."""
    names = _matches(SYSLOG, 1, text)
    names |= _matches(LOGIN, 2, text)
    names |= _matches(SLURM_NODE, 2, text)
    names |= _matches(HOST_FIELD, 3, text)
    return set(filter(_is_private, names))


def _is_private(name: str) -> bool:
    return (
        len(name) >= SHORTEST_NAME
        and name.lower() not in NOBODY
        and not _is_alias(name)
        and not name.isdigit()
    )
