"""The fields that a request of a class may have, and how large each may be: a list of what is open.

Every other field is refused, so a new release of vLLM opens nothing by itself. What is not here would
be a program for the server (`chat_template`), a file that it would have to unpack (`prompt_embeds`),
for the server's owner to set (`mm_processor_kwargs`, `kv_transfer_params`, `vllm_xargs`), or an
advantage over the others (`priority`, `background`, `use_beam_search`).

The standard library only.
"""

from typing import NamedTuple

UNLIMITED = 10**9
MAX_IDENTIFIER = 128  # characters of an id, also of the header X-Request-Id


class Limit(NamedTuple):
    """The largest sizes of a field: entries of a list or an object, each text and number of it."""

    entries: int = UNLIMITED
    characters: int = UNLIMITED
    number: int = UNLIMITED


IDENTIFIER = Limit(characters=MAX_IDENTIFIER)
# Those whose size is limited elsewhere, or has no price for the others.
PLAIN = """
    model prompt suffix echo seed n best_of stream stream_options stream_interval
    max_tokens max_completion_tokens max_output_tokens min_tokens ignore_eos
    temperature top_k top_p min_p frequency_penalty presence_penalty repetition_penalty
    length_penalty include_stop_str_in_output skip_special_tokens spaces_between_special_tokens
    add_special_tokens truncate_prompt_tokens truncation truncation_side
    logprobs top_logprobs prompt_logprobs
    return_token_ids return_tokens_as_token_ids return_token_strs return_token_offsets
    return_prompt_text
    response_format structured_outputs text output_config
    system instructions add_generation_prompt continue_final_message tool_choice
    parallel_tool_calls max_tool_calls reasoning reasoning_effort include_reasoning thinking
    thinking_token_budget enable_response_messages store service_tier verbosity
    encoding_format dimensions embed_dtype endianness padding use_activation tokens
"""
FIELDS: dict[str, Limit] = {
    **dict.fromkeys(PLAIN.split(), Limit()),
    "messages": Limit(1000),
    "input": Limit(1000),
    "previous_input_messages": Limit(1000),
    "tools": Limit(128),
    "documents": Limit(100),
    "stop": Limit(16, 200),
    "stop_sequences": Limit(16, 200),
    "bad_words": Limit(64, 200),
    "stop_token_ids": Limit(128),
    "logit_bias": Limit(300),
    "allowed_token_ids": Limit(1000),
    "logprob_token_ids": Limit(128),
    "prompt_logprob_token_ids": Limit(1000),
    "include": Limit(20),
    "metadata": Limit(16, 512),
    "chat_template_kwargs": Limit(16, 2000),
    "repetition_detection": Limit(number=100),
    "request_id": IDENTIFIER,
    "session_id": IDENTIFIER,
    "cache_salt": IDENTIFIER,
    "prompt_cache_key": IDENTIFIER,
    "previous_response_id": IDENTIFIER,
    "user": Limit(characters=512),
    "safety_identifier": Limit(characters=512),
}
