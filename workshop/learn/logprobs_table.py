"""Logprobs as a pandas table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workshop.use.logprobs import Row, tidy

if TYPE_CHECKING:
    import pandas as pd


def to_frame(rows: Iterable[Row], *, alternatives: bool = False) -> pd.DataFrame:
    """Return one line a token; with alternatives one line for each of these, `chosen` marking the text's own.

    Columns: part, position, token, token_id, logprob, probability, surprise_bits, rank, chosen.
    """
    import pandas as pd  # 0.5 s, and only notebooks need it

    table = pd.DataFrame(tidy(rows)).astype({"token_id": "Int64", "rank": "Int64"})
    return table if alternatives else table[table["chosen"]].drop(columns="chosen").reset_index(drop=True)
