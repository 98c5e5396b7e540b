"""vLLM's engine dies on a CPU at the first request of a pipeline that runs with --enforce-eager.

Upstream: no issue found. To reproduce: `vllm serve MODEL --enforce-eager --pipeline-parallel-size 2` with the CPU build,
then one completion.
Versions: vLLM 0.32.0. Ends when: that request is answered.
"""


def flags(pipeline_stages: int) -> dict[str, str]:
    """Return the flags with which a CPU engine starts without compiling, which takes longer than a lesson's requests.

    A pipeline takes the backend "eager" of torch.compile instead: the graph is traced, and nothing is compiled.
    """
    if pipeline_stages > 1:
        return {"compilation-config": '{"mode":2,"backend":"eager"}'}
    return {"enforce-eager": ""}
