"""The planner of the course "Distributed LLM inference with vLLM", alone.

>>> from inference_planner import plan
>>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
>>> p.fits, p.gpus
(True, 2)
"""
