"""Take what names you out of a log: `workshop reconcile LOG --anonymise`.

Pure: the text of a log and your names in, a text out. The figures stay, so that the result
reconciles as the log did. Each address gets one of its own, since ranks are told apart by them.
Applied twice, it changes nothing more.
"""

from __future__ import annotations

import difflib
import getpass
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from workshop.engine import log as engine_log

KEY = "***"
PROMPT = "(removed)"
# values that stay: what a machine calls itself, and names that everybody has
LOCAL = {"0.0.0.0", "127.0.0.1", "::", "::1", "255.255.255.255"}
NOBODY = {"root", "user", "host", "localhost", "ubuntu", "vllm", "home", "shared"}
SHORTEST_NAME = 3
# ranges that are nobody's: for measurements and documentation, RFC 2544, 3849 and 5737
NOBODYS = {
    4: ipaddress.ip_network("198.18.0.0/15"),
    6: ipaddress.ip_network("2001:db8::/32"),
}
EXAMPLES = ipaddress.ip_network("192.0.2.0/24")

TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[opsur]_[A-Za-z0-9]{16,}|glpat-[\w-]{12,}"
    r"|github_pat_\w{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|A[KS]IA[A-Z0-9]{12,}|nvapi-[\w-]{12,}|eyJ[\w-]{8,}\.[\w.-]{8,})"
)
BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}")
SECRET = re.compile(
    r"""(?i)((?<![\w-])(?:--)?[\w-]*(?:(?:api|access|private|secret)[-_]?keys?(?:[-_]id)?|token|password|passwd"""
    r"""|secret|credentials?|cookie|authorization)\\?['"]?"""
    r"""(?:\s*[=:]\s*|\s+(?=[^\s=:]*\d))\[?\\?['"]?)"""
    r"""(?!None\b|null\b|True\b|False\b|(?:bearer|basic)\s|\*\*\*)[^\s'",;\]})\\]{4,}"""
)
USER_INFO = re.compile(r"(?<=://)[^\s/@'\"]{1,200}@")
MAIL = re.compile(r"(?<![\w.+/-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
IPV4 = re.compile(r"(?<![\w.-])(?<!version )(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d|\.\w)")
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
MAC = re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")
HOME = re.compile(r"(/(?:home|Users)/|[A-Za-z]:\\{1,2}Users\\{1,2})([\w.@-]+)")
PROMPTS = re.compile(
    r"""((?:\bprompt|'prompt'|"prompt"|\bcontent|'content'|"content")\s*[:=]\s*)"""
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?=\s*[,})\]])"""
)
PROMPT_TOKENS = re.compile(r"(prompt_token_ids\s*[:=]\s*)\[[\d,\s]+\]")


def anonymise(
    text: str, users: Collection[str], hosts: Collection[str], home: str
) -> tuple[str, Counter[str]]:
    """Return a log without prompts, keys, addresses and these names, and how many of each kind went.

    Args:
        users: names of accounts; those of home folders in the log go as well.
        hosts: names of machines.
        home: the path of a home folder.

    Raises BadInput: this is no log of vLLM.
    """
    engine_log.parse(text)
    removed: Counter[str] = Counter()
    addresses: dict[str, str] = {}

    def sub(pattern: re.Pattern[str], kind: str, new: Callable[[re.Match[str]], str]) -> None:
        nonlocal text

        def changed(match: re.Match[str]) -> str:
            result = new(match)
            removed[kind] += result != match[0]
            return result

        text = pattern.sub(changed, text)

    def names(listed: Collection[str], kind: str, alias: str) -> None:
        for name in sorted(set(listed), key=len, reverse=True):
            if len(name) >= SHORTEST_NAME and name.lower() not in NOBODY:
                pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
                sub(pattern, kind, lambda _: alias)

    sub(PROMPTS, "prompts", lambda match: f"{match[1]}'{PROMPT}'")
    sub(PROMPT_TOKENS, "prompts", lambda match: f"{match[1]}[]")
    sub(TOKENS, "keys", lambda _: KEY)
    sub(BEARER, "keys", lambda match: match[1] + KEY)
    sub(SECRET, "keys", lambda match: match[1] + KEY)
    sub(USER_INFO, "keys", lambda _: "")
    sub(MAIL, "addresses", lambda _: "user@mail.invalid")
    sub(MAC, "addresses", lambda _: "02:00:00:00:00:00")
    for pattern in (IPV4, IPV6):
        sub(pattern, "addresses", lambda match: _address(match[0], addresses))
    if len(home.strip("/")) >= SHORTEST_NAME:
        sub(re.compile(re.escape(home) + r"(?![\w-])"), "names", lambda _: "/home/user")
    accounts = {*users, *(match[2] for match in HOME.finditer(text))}
    sub(HOME, "names", lambda match: match[1] + "user")
    names(accounts, "names", "user")
    names(hosts, "names", "host")
    return text, +removed


def own_names() -> tuple[set[str], set[str], str]:
    """Return this account's name, this machine's names, and the home folder."""
    host = socket.gethostname()
    return {getpass.getuser()}, {host, host.partition(".")[0]}, str(Path.home())


def difference(before: str, after: str) -> str:
    """Return the lines that differ, as `diff` shows them."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def _address(address: str, aliases: dict[str, str]) -> str:
    """Return an address for documentation, another one for each address; local ones stay."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    network = NOBODYS[parsed.version]
    if address in LOCAL or parsed in network or parsed in EXAMPLES:
        return address
    if parsed.version == 6 and "::" not in address and address.count(":") < 7:
        return address
    return aliases.setdefault(str(parsed), str(network[len(aliases) + 1]))
