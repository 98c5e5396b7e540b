"""Count how the answers of rows ended: at a stop, for want of tokens, with a call of a tool."""

from dataclasses import dataclass, field

from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH


@dataclass(frozen=True)
class Outcome:
    """The outcome of one row: how its answer ended."""

    finish_reasons: tuple[str, ...]  # of each sample

    @property
    def is_cut(self) -> bool:
        """True if a sample ended because it had no tokens left."""
        return ENDED_IN_LENGTH in self.finish_reasons


@dataclass
class Outcomes:
    """Count the answers by the way in which they ended, over all rows that are answered."""

    finish_reasons: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Outcome, count: int = 1) -> None:
        """Count the outcome of a row; a count of -1 takes it out again."""
        for reason in outcome.finish_reasons:
            self.finish_reasons[reason] = self.finish_reasons.get(reason, 0) + count

    def by_count(self) -> dict[str, int]:
        """Return the finish reasons that there are, the most frequent first."""
        reasons = sorted(self.finish_reasons.items(), key=lambda item: (-item[1], item[0]))
        return {reason: count for reason, count in reasons if count}


def outcome(choices: list[dict]) -> Outcome:
    """Return how an answer ended, by the `choices` of its body; an embedding has no reason."""
    reasons = [choice.get("finish_reason") for choice in choices]
    return Outcome(tuple(str(reason) for reason in reasons if reason is not None))
