"""The former place of `workshop.sampling`."""

from workshop.client.sampling import next_token_probabilities as next_token_probabilities
