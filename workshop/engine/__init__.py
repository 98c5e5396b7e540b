"""What vLLM says: its log, metrics, steps and model classes, and how they compare with the plan."""
