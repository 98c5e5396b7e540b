"""For notebook 12: speculative decoding, recorded, predicted and measured on a server.

>>> from workshop.course.notebooks import nb12
>>> agreement = [[True, False, True, True, True, True, True]]
>>> nb12.speculation.lengths(agreement, guesses=3)              # tokens of each step
[2, 4, 2]
>>> nb12.measured_drafts()["n-gram, vLLM 0.32.0"]["32 users"]   # times the rate without a draft
1.16
"""

from workshop.course.topics import speculation
from workshop.engine import measured_runs

__all__ = ["measured_drafts", "speculation", "tokens_per_step"]

# The run with a draft and the run of the same day without one (docs/gpu.md).
# 8B on one H200, four draft tokens.
RUNS = {
    "Llama 3.2 1B, vLLM 0.32.0": ("8b-draft-1b-accept-2.8", "8b-no-guesses"),
    "n-gram, vLLM 0.32.0": ("8b-ngram-accept-2.0", "8b-no-guesses-again"),
    "EAGLE-3, vLLM 0.33.0": ("8b-eagle3-accept-2.8", "8b-no-guesses-0.33"),
}
USERS = (1, 8, 32, 128)


def tokens_per_step(counted: speculation.DraftRun) -> float:
    """Return how many tokens a step with guesses wrote on average, by vLLM's counters.

    The accepted guesses, and one token of the target's own.
    """
    return 1 + counted.accepted / counted.drafts


def measured_drafts() -> dict[str, dict[str, float]]:
    """Return draft → {tokens per step, N users}, measured.

    The values of users are tokens/s, divided by those of the same server without a draft.
    """
    table: dict[str, dict[str, float]] = {}
    for draft, (with_draft, without) in RUNS.items():
        fast = measured_runs.tuned(with_draft)
        plain = measured_runs.tuned(without)
        # the acceptance length was set, not drawn; the name of the run has it
        row = {"tokens per step": float(with_draft.rpartition("-")[2])}
        for users in USERS:
            rate = f"batch{users}_decode_tok_s"
            label = "1 user"
            if users != 1:
                label = f"{users} users"
            row[label] = round(fast[rate] / plain[rate], 2)
        table[draft] = row
    return table
