"""All that a class may ask for: paths, fields of a request with their sizes, parts of forms.

Everything else is refused, so a new release of vLLM opens nothing by itself. A field that is not
here would be a program for the server (`chat_template`), a file that it would have to unpack
(`prompt_embeds`), for the server's owner to set (`mm_processor_kwargs`, `kv_transfer_params`,
`vllm_xargs`), or an advantage over the others (`priority`, `background`, `use_beam_search`). A form
that is not here may cost the server seconds: what is open was measured (see `forms`).

The standard library only.
"""

from typing import NamedTuple

UNLIMITED = 10**9

# Paths.
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
# Those that make the engine work, and what each calls the longest answer.
ANSWER_LENGTHS = {
    COMPLETIONS: ("max_tokens",),
    CHAT: ("max_tokens", "max_completion_tokens"),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
    EMBEDDINGS: (),
}
GENERATE = tuple(ANSWER_LENGTHS)
OPEN = (*GENERATE, "/tokenize", "/detokenize", "/v1/messages/count_tokens")
HEALTH = "/health"  # it answers everybody, a probe without a key as well
# Those that only look, and how many seconds their copy may be old. All but /metrics stay as they
# are while a server runs.
SECONDS = {
    "/v1/models": float("inf"),
    "/version": float("inf"),
    "/openapi.json": float("inf"),
    "/metrics": 1.0,
}

# Fields of a request.
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

# Forms: schemas, tools, choices and patterns.
# Of all forms of one request together.
MAX_FORM_BYTES = 64 * 1024
MAX_PARTS = 1000  # schemas, required names, choices, and values of enum
MAX_ITEMS = 2000  # the sum of minItems and maxItems
MAX_DIGITS = 600  # of all minimum and maximum: 40 of 15 digits
# Of each.
MAX_DEPTH = 40  # objects and lists inside each other; vLLM allows 64
MAX_ANY_OF = 8
MAX_TEXT = 500  # characters of a name, a value or a choice
MAX_LENGTH = 10_000  # minLength, maxLength
MAX_NUMBER = 10**15  # minimum, maximum
MAX_PATTERN = 200  # characters
MAX_REPEATS = 20  # the largest number in {1,20}

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
TEXTS = f"a list of texts of up to {MAX_TEXT} characters"
SCHEMAS = 'an object as {"name": {"type": "string"}}'
# The keywords of a schema that are open, and what their values may be.
KEYWORDS = {
    "type": f"{', '.join(TYPES)}, or a list of them",
    "properties": SCHEMAS,
    "required": TEXTS,
    "additionalProperties": "true or false",
    "items": 'a schema as {"type": "string"}',
    "minItems": f"whole numbers from 0 to {MAX_ITEMS:,}",
    "maxItems": f"whole numbers from 0 to {MAX_ITEMS:,}",
    "minLength": f"whole numbers from 0 to {MAX_LENGTH:,}",
    "maxLength": f"whole numbers from 0 to {MAX_LENGTH:,}",
    "minimum": f"numbers up to {MAX_NUMBER:,}",
    "maximum": f"numbers up to {MAX_NUMBER:,}",
    "enum": f"texts of up to {MAX_TEXT} characters, numbers, true, false and null",
    "const": f"a text of up to {MAX_TEXT} characters, a number, true, false or null",
    "pattern": f"a text of up to {MAX_PATTERN} characters, not inside anyOf",
    "anyOf": f"a list of 1 to {MAX_ANY_OF} schemas",
    "$ref": "#/$defs/NAME, a name of the same schema",
    "$defs": SCHEMAS,
    "title": "anything",
    "description": "anything",
    "default": "anything",
}
BESIDE_A_REFERENCE = {"anyOf", "$ref", "$defs", "title", "description", "default"}
# The fields of a request, and what may stand in them.
STRUCTURED = ("json", "json_object", "choice", "regex")
STRUCTURED += ("disable_any_whitespace", "disable_additional_properties")
FORMAT = ("type", "json_schema", "name", "description", "schema", "strict")
FORMAT_TYPES = ("text", "json_object", "json_schema")
TOOL = ("type", "function", "name", "description", "parameters", "input_schema", "strict")
TOOL += ("cache_control", "defer_loading")
TOOL_TYPES = ("function", "custom")  # Anthropic calls one with an input_schema custom
HOLDERS = ("json_schema", "function")  # what stands in them may stand beside them as well
