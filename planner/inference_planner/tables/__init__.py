"""Tables of the course and its pages: cards, rules of thumb, other calculators."""
