"""A job from its start to its end: the supervisor on its first node, the engine's part on each."""
