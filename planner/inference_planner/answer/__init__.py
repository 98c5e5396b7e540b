"""The plan that is handed on: the choice, its reasons, advice, command, report."""
