"""The slides show the story's script, and answers as the server sent them, cut to what matters."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path

from drawings.recorded import answers, recorded

from workshop.course.notebooks.nb03 import plain, script_parts

ROOT = Path(__file__).resolve().parents[1]
STORY_PLAN = {"gpu": "h100", "max_model_len": 8192}  # notebook 3
NO_ROOM = ("--mem", "export MODEL", "--max-model-len")  # parts of the script
LONG = 26  # characters of a string that are shown


def script_rows() -> str:
    """Table rows: the lines of the story's script that matter, and what each means, as in notebook 3."""
    rows = script_parts(plain("llama-3.1-8b", **STORY_PLAN)).rows
    return "\n".join(
        f"| `{line}` | {meaning} |"
        for line, meaning in rows
        if not any(part in line for part in NO_ROOM)
    )


def _cut(value: object) -> str:
    if isinstance(value, str) and len(value) > LONG:
        value = value[: LONG - 1].rstrip() + "…"
    if isinstance(value, float):
        value = round(value, 2)
    return json.dumps(value, ensure_ascii=False)


def _pre(lines: list[str]) -> str:
    """A block of code of lines that are HTML already."""
    return "<pre><code>" + "\n".join(lines) + "</code></pre>"


def answer() -> str:
    """The whole answer, choices folded."""
    data = answers()["answer"]["answer"]
    lines = [f"  {_cut(key)}: {_cut(data[key])}," for key in ("id", "object", "created", "model")]
    usage = ",\n".join(
        f"    {_cut(key)}: {data['usage'][key]}"
        for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    return _pre(
        [
            "{",
            *map(html.escape, lines),
            '  "choices": [ … ],',
            '  "usage": {',
            html.escape(usage),
            "  }",
            "}",
        ]
    )


def choice() -> str:
    """The second of two choices."""
    data = answers()["choices"]["answer"]["choices"][1]
    names = ("index", "text", "finish_reason", "stop_reason", "logprobs", "prompt_logprobs")
    lines = [f"  {_cut(name)}: {_cut(data[name])}" for name in names]
    return _pre(['"choices": [ …,', "{", html.escape(",\n".join(lines)), "}]"])


def logprobs(k: str) -> str:
    """choices[0].logprobs for logprobs=k; the generated token is marked."""
    answer_logprobs = answers()["logprobs"][k]["answer"]["choices"][0]["logprobs"]
    title = f'<span class="hljs-comment"># logprobs={k}</span>'
    if answer_logprobs is None:
        return _pre([title, '"logprobs": null'])
    lines = [title, '"top_logprobs": [']
    for token, top in zip(answer_logprobs["tokens"], answer_logprobs["top_logprobs"], strict=True):
        entries = []
        for name, value in top.items():
            text = html.escape(f"{_cut(name)}: {value:.2f}")
            entries.append(f"<mark>{text}</mark>" if name == token else text)
        wide = len(entries) > 2
        lines.append("  { " + (",\n    ".join(entries) if wide else ", ".join(entries)) + " },")
    return _pre([*lines, "]"])


def prompt_logprobs() -> str:
    """The first three positions of the prompt."""
    positions = answers()["prompt_logprobs"]["answer"]["choices"][0]["prompt_logprobs"]
    lines = ['"prompt_logprobs": [', "  null,"]
    for position in positions[1:3]:
        lines.append("  {")
        for number, (token_id, entry) in enumerate(position.items()):
            text = (
                f'"{token_id}": {{ "logprob": {entry["logprob"]:.2f}, "rank": {entry["rank"]},',
                f'  "decoded_token": {json.dumps(entry["decoded_token"], ensure_ascii=False)} }},',
            )
            marks = ("<mark>", "</mark>") if number == 0 else ("", "")
            lines += [f"    {marks[0]}{html.escape(line)}{marks[1]}" for line in text]
        lines.append("  },")
    return _pre([*lines, "  …"])


@cache
def llama_70b() -> dict:
    """Return the worked example of a 70B server, as the published slides show it."""
    path = ROOT / "workshop/data/distributions/llama_70b_slide.json"
    return json.loads(path.read_text(encoding="utf-8"))["choices"][0]


def slide(marked: bool) -> str:
    """Both positions of the worked example; marked: yellow what was generated, blue what was most probable."""
    answer_logprobs = llama_70b()["logprobs"]
    lines = ['"top_logprobs": [']
    for token, top in zip(answer_logprobs["tokens"], answer_logprobs["top_logprobs"], strict=True):
        best, entries = max(top, key=top.get), []
        for name, value in top.items():
            kind = "both" if name == token == best else "b" if name == best else "g"
            text = html.escape(f"{json.dumps(name)}: {value}")
            entries.append("    " + (f'<mark class="{kind}">{text}</mark>' if marked else text))
        lines += ["  {", ",\n".join(entries), "  },"]
    return _pre([*lines, "]"])


def slide_prompt() -> str:
    """The first token of the worked example's prompt."""
    lines = ['"prompt_logprobs": [', "  {"]
    for number, (token_id, entry) in enumerate(llama_70b()["prompt_logprobs"][0].items()):
        text = [f'"{token_id}": {{'] + [
            f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in entry.items()
        ]
        mark = '<mark class="b">' if number else "<mark>"
        lines += [
            f"    {mark}{html.escape(text[0])}</mark>",
            *(f"    {html.escape(line)}" for line in text[1:]),
            "    },",
        ]
    return _pre([*lines, "  },"])


def _cell(text: str, length: int) -> str:
    text = (
        " ".join(text.split())
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )
    return text if len(text) <= length else text[: length - 1].rstrip() + " …"


def _end(text: str, length: int) -> str:
    """How a long text ends, from a whole word on."""
    return text if len(text) <= length else "… " + text[-length:].split(" ", 1)[1]


def limits() -> str:
    """Table rows: what was asked and with which limits, tokens, why it ended, the text."""
    out = []
    for case in answers()["limits"]:
        request_limits = "`<br>`".join(
            f"{name}={case['request'][name]}"
            for name in ("min_tokens", "max_tokens")
            if name in case["request"]
        )
        subject = (
            "an abstract" if case["request"]["prompt"].startswith("Abstract") else "What is Boston?"
        )
        chosen = case["answer"]["choices"][0]
        out.append(
            f"| {subject} | `{request_limits}` | {case['answer']['usage']['completion_tokens']} | {chosen['finish_reason']} | "
            f"{_cell(_end(chosen['text'], 66), 70)} |"
        )
    return "\n".join(out)


def penalties() -> str:
    """Table rows: what three penalties make of the same prompt."""
    return "\n".join(
        f"| **{case['request']['frequency_penalty']}** | … {_cell(case['answer']['choices'][0]['text'], 132)} |"
        for case in answers()["penalties"]
    )


def stream() -> str:
    """The lines of a stream, cut to what changes."""
    lines = []
    for line in recorded("chat")["stream"]:
        data = json.loads(line) if line.startswith("{") else {}
        if chosen := data.get("choices"):
            shown = {name: chosen[0][name] for name in ("delta", "finish_reason")}
        else:
            usage = (
                {name: data["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
                if data
                else {}
            )
            shown = {"choices": [], "usage": usage} if data else line
        lines.append(
            html.escape(
                f"data: {shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)}"
            )
        )
    return _pre(lines)


def forms() -> str:
    """Table rows: the form that was asked for, what came back, why it ended."""
    requested_forms = {
        "free": "nothing",
        "choice": '`choice=["positive", "negative"]`',
        "json": "`json=` a schema",
        "tight": "`regex=` without room",
    }
    out = []
    for name, form in requested_forms.items():
        answer = recorded("chat")[name]
        chosen, tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
        text = chosen["message"]["content"].replace("\n", "\\n")
        if len(text) >= 52:
            text = f"{text[:22]} …"
        out.append(f"| {form} | `{text}` | {chosen['finish_reason']}, {tokens} |")
    return "\n".join(out)


def snippets() -> dict[str, str]:
    """Return what `{{json.…}}` and `{{rows.…}}` stand for."""
    return {
        "json.answer": answer(),
        "json.choice": choice(),
        "json.logprobs_none": logprobs("None"),
        "json.logprobs_zero": logprobs("0"),
        "json.logprobs_three": logprobs("3"),
        "json.prompt_logprobs": prompt_logprobs(),
        "json.slide": slide(False),
        "json.slide_marked": slide(True),
        "json.slide_prompt": slide_prompt(),
        "rows.script": script_rows(),
        "rows.limits": limits(),
        "rows.penalties": penalties(),
        "json.stream": stream(),
        "rows.forms": forms(),
    }
