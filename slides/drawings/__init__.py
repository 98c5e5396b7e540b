"""What draws the slides' figures: one module for each part of the deck, all on one canvas."""
