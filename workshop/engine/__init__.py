"""Read what vLLM says (log, metrics, steps, model classes), and compare it with the plan."""
