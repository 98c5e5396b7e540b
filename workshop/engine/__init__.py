"""What vLLM says: its log, its metrics, its steps and its model classes, and how they compare with the plan."""
