"""Known failures of vLLM's model and arguments: how the log says it, what it means, and the remedy. Pure.

The patterns were checked against the sources of vLLM 0.25.1 and 0.32.0 (and, for older wordings, reports
about 0.6 to 0.9), torch, NCCL, Ray, huggingface_hub and transformers.
"""

from __future__ import annotations

from workshop.engine.log.failures import LIKELY, known

MODEL = (
    known(
        "model-not-found",
        r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '(?P<model>[^']*)'|"
        r"(?P<other>\S+) is not a local folder and is not a valid model identifier",
        "There is no model folder {model}: vLLM took the path for a Hub id.",
        "Check the path (inside a container: the path there), or fetch the model first with `workshop prefetch`.",
    ),
    known(
        "no-config",
        r"Invalid repository ID or local directory specified:\s*'?(?P<model>[^'\n]*)|"
        r"(?P<folder>\S+) does not appear to have a file named config\.json",
        "The model {model} has no config.json: it is not a model folder, or not a whole one.",
        "Give the folder that holds config.json and the *.safetensors files; fetch it again if the file is missing.",
    ),
    known(
        "config-unreadable",
        r"(?:It looks like )?the config file at '?(?P<file>[^']*?config\.json)'? is not a valid JSON|"
        r"OSError: .*config\.json.* is not a valid JSON file",
        "The model's config.json is no valid JSON: the file was cut or changed.",
        "Fetch the file again, and compare its size with the original.",
    ),
    known(
        "architecture-not-supported",
        r"Model architectures \['?(?P<name>[^\]']+)'?[^\]]*\] (?:are not supported for now|failed to be inspected)",
        "This version of vLLM does not know the architecture {name}.",
        "Look whether a newer vLLM supports it, or try --model-impl transformers.",
    ),
    known(
        "model-type-not-known",
        r"model type [`'](?P<name>[^`']+)[`'] but Transformers does not recognize this architecture",
        "The installed transformers library does not know the model type {name}.",
        "Update transformers and vLLM to versions that support the model.",
    ),
    known(
        "gated-model",
        r"Cannot access gated repo for url|You are trying to access a gated repo|GatedRepoError|"
        r"Access to model \S+ is restricted",
        "The model is gated: its licence has to be accepted on the Hub, and no token that may read it was given.",
        "Accept the licence on the model's page, then `hf auth login` or set HF_TOKEN; on a cluster fetch the "
        "model once with `workshop prefetch`.",
    ),
    known(
        "model-not-on-hub",
        r"Repository Not Found for url: (?P<url>\S+?)\.?$|RepositoryNotFoundError",
        "The Hub has no such model, or it is private and no token that may read it was given.",
        "Check the spelling of the model's id; for a private model log in with `hf auth login` or set HF_TOKEN.",
    ),
    known(
        "hub-offline",
        r"outgoing traffic has been disabled|OfflineModeIsEnabled|Cannot reach \S+: offline mode is enabled|"
        r"offline mode is enabled",
        "The model is not in the local cache, and HF_HUB_OFFLINE forbids fetching it.",
        "Fetch the model where there is internet (`workshop prefetch MODEL --to FOLDER`), and give the folder; or "
        "unset HF_HUB_OFFLINE.",
        rank=LIKELY,
    ),
    known(
        "hub-unreachable",
        r"We couldn't connect to '(?P<host>[^']*)' to load the files|LocalEntryNotFoundError|"
        r"An error happened while trying to locate the file on the Hub|"
        r"(?:Failed to establish a new connection|Name or service not known|Temporary failure in name resolution|"
        r"Network is unreachable|Max retries exceeded with url).*",
        "The Hugging Face Hub cannot be reached from this machine.",
        "Compute nodes often have no internet: fetch the model on a login node with `workshop prefetch MODEL --to "
        "FOLDER`, and serve that folder.",
        rank=LIKELY,
    ),
    known(
        "no-weights",
        r"Cannot find any model weights with `(?P<model>[^`]*)`",
        "The folder {model} holds no weights (no *.safetensors or *.bin files).",
        "Fetch the model again; to try a configuration without weights, add --load-format dummy.",
    ),
    known(
        "missing-shard",
        r"Weight files referenced in index but missing: \{(?P<files>.*)\}|"
        r"No such file or directory: ?\\?\"?'?(?P<file>[^'\"]*\.(?:safetensors|bin))|"
        r"(?P<other>\S+\.safetensors)\S* (?:is missing|not found)|"
        r"Following weights were not initialized from checkpoint|"
        r"[Mm]issing .*(?:shard|safetensors) file",
        "A part of the weights is missing: the model folder is not complete.",
        "Compare the files with model.safetensors.index.json, and fetch what is missing.",
    ),
    known(
        "corrupt-shard",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader|HeaderTooLarge|"
        r"PytorchStreamReader failed|invalid load key",
        "A file of the weights is damaged or was cut: its header does not match its size.",
        "Fetch the files again, and compare their sizes (or SHA-256 sums) with the original; a full disk or a "
        "quota is a usual cause.",
    ),
    known(
        "weights-do-not-fit-config",
        r"size mismatch for|Attempted to load weight \(torch\.Size.* into parameter|"
        r"There is no module or parameter named",
        "The weights do not have the shapes that config.json says: they belong to another model or precision.",
        "Use config.json and weights from one and the same model revision.",
    ),
    known(
        "no-tokenizer",
        r"Can't load (?:the )?tokenizer for|Couldn't instantiate the backend tokenizer|"
        r"Tokenizer class \S+ does not exist|does not appear to have a file named tokenizer|"
        r"Unable to load vocabulary|not a string.*tokenizer",
        "The tokenizer cannot be loaded: its files are not in the model folder, or incomplete.",
        "Fetch tokenizer.json and tokenizer_config.json as well, or give --tokenizer.",
    ),
    known(
        "remote-code",
        r"requires you to execute the (?:configuration file|model file|tokenizer)|"
        r"pass the argument `trust_remote_code=True`",
        "The model brings its own Python code, and vLLM does not run it unasked.",
        "Read that code; if you trust it, add --trust-remote-code.",
    ),
)

CONFIGURATION = (
    known(
        "tensor-parallel-does-not-divide",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "{heads} attention heads cannot be divided among {tp} GPUs.",
        "Choose a --tensor-parallel-size that divides {heads}, and use --pipeline-parallel-size for the rest.",
    ),
    known(
        "shape-does-not-divide",
        r"(?P<a>\d+) is not divisible by (?P<b>\d+)",
        "A dimension of the model ({a}) cannot be divided by {b}, which is most often the tensor parallel size.",
        "Choose a smaller --tensor-parallel-size, and use --pipeline-parallel-size for the rest.",
    ),
    known(
        "pipeline-not-supported",
        r"Pipeline parallelism is not supported for this model",
        "vLLM cannot split this model into pipeline stages.",
        "Use --tensor-parallel-size alone.",
    ),
    known(
        "max-model-len-too-long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?P<key>\w+)=(?P<most>\d+)",
        "--max-model-len {asked} is more than the {most} tokens that the model was made for.",
        "Give at most --max-model-len {most}.",
    ),
    known(
        "bfloat16-not-supported",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<gpu>.+?) GPU",
        "The {gpu} is too old for bfloat16 (it needs compute capability 8.0, an A100 or newer).",
        "Add --dtype half.",
    ),
    known(
        "quantization-not-supported",
        r"[Tt]he quantization method (?P<name>\S+) is not supported for the current GPU|"
        r"(?P<other>\S+) quantization is currently not supported (?:in|on|for)",
        "This GPU is too old for the model's quantization ({name}), or vLLM has no kernel for it there.",
        "Take the model in another precision, or a newer GPU: FP8 needs an L4, L40S or H100, or newer.",
    ),
    known(
        "quantization-unknown",
        r"Unknown quantization method: (?P<name>\S+?)\. Must",
        "vLLM does not know the quantization method {name}.",
        "Leave --quantization out if the model is quantized already; otherwise use one of the methods that the log "
        "lists.",
    ),
    known(
        "quantization-mismatch",
        r"Quantization method specified in the model config \((?P<has>\S+)\) does not match",
        "The model is quantized with {has}, but --quantization asks for something else.",
        "Leave --quantization out: vLLM reads it from config.json.",
    ),
    known(
        "unknown-argument",
        r"error: unrecognized arguments: (?P<argument>.+)",
        "vLLM does not know the argument {argument}.",
        "Check its spelling with `vllm serve --help=all`; flags differ between versions.",
    ),
    known(
        "bad-argument",
        r"error: argument (?P<argument>[^:]+): (?P<why>.+)",
        "The argument {argument} was given a wrong value: {why}.",
        "See `vllm serve --help={argument}`.",
    ),
)
