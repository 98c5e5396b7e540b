"""What a distribution over tokens is good for: a draw from it, and its entropy. Pure: standard library only."""

import math
import random
from collections.abc import Mapping

from workshop.use.sampling import Token


def draw(probabilities: Mapping[Token, float], generator: random.Random) -> Token:
    """Draw one token; the same generator state gives the same token, whatever the sampler of the server does."""
    return generator.choices(list(probabilities), weights=list(probabilities.values()))[0]


def entropy_bits(probabilities: Mapping[Token, float]) -> float:
    """Return the entropy in bits: 0 if one token is certain, 13 if 8,192 are equally likely."""
    return -math.fsum(p * math.log2(p) for p in probabilities.values() if p > 0) + 0.0
