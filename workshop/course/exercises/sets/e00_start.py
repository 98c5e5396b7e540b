from workshop.course.exercises.judging import Exercise, exactly

PROMPT, ASKED = "San Francisco is a", 40


def stop(answer: object) -> str | None:
    if not isinstance(answer, dict) or not answer.get("choices"):
        return (
            "give the whole answer, as llm.complete(…) returns it "
            "(with httpx that is response.json())"
        )
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return (
            "it still ended because max_tokens was reached (finish_reason 'length'): "
            "which string should end it?"
        )
    if choice.get("stop_reason") is None:
        return (
            "the model's own end-of-text token ended it; "
            "let a string of yours do it, so that stop_reason says so"
        )
    if choice["stop_reason"] != ".":
        return f"{choice['stop_reason']!r} ended it; a full stop is wanted"
    return None


def total_tokens(answer: object) -> str | None:
    from workshop.client.client import connect  # openai takes 0.5 s to import

    llm = connect()
    usage = llm.complete(PROMPT, max_tokens=ASKED, min_tokens=ASKED, temperature=0).usage
    total = usage.total_tokens
    first_total = usage.prompt_tokens + 16
    wrong = {
        usage.completion_tokens: f"{ASKED} is what you asked for; the prompt's tokens count as well",
        total - 1: "close: one more token stands in front of the words of the prompt",
        total + 1: "close: the answer has exactly 40 tokens, and nothing is added after them",
        usage.prompt_tokens: "those are the prompt's tokens alone; the answer's count as well",
        first_total: f"that is the total of the first request; this one generates {ASKED} tokens",
    }
    return Exercise("", exactly(total, "tokens"), wrong=wrong).test(answer)
