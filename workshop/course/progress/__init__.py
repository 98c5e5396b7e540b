"""The learner's way through the course: the path, tries and predictions, and those of a class."""
