"""Make a folder that vLLM serves of a Llama that lies in one GGUF file.

    python -m workshop.servers.weights.gguf_llama FILE FOLDER

The weights are dequantized to bfloat16. Needs `gguf`, torch, safetensors and transformers.
"""

import json
import sys
from pathlib import Path

import torch

TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def name_of(tensor: str) -> str:
    """Return the name that a tensor of GGUF has in transformers."""
    first, *rest = tensor.removesuffix(".weight").split(".")
    if first in WHOLE:
        return f"{WHOLE[first]}.weight"
    layer, part = rest
    return f"model.layers.{layer}.{TENSORS[part]}.weight"


def in_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return q's or k's rows with each head's halves one after the other, as transformers rotates them.

    GGUF has them by turns: (outputs, inputs) of `heads` heads.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def convert(file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into an empty folder."""
    import gguf  # pyright: ignore[reportMissingImports]  # fetched for this alone
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaForCausalLM

    reader = gguf.GGUFReader(file)
    fields = {key.partition(".")[2]: field.contents() for key, field in reader.fields.items()}
    heads = {"attn_q": fields["attention.head_count"], "attn_k": fields["attention.head_count_kv"]}
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).clone()
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = in_halves(weight, heads[part])
        weights[name_of(tensor.name)] = weight.to(torch.bfloat16)
    config = {
        "architectures": [LlamaForCausalLM.__name__],
        "model_type": "llama",
        "hidden_size": fields["embedding_length"],
        "intermediate_size": fields["feed_forward_length"],
        "num_hidden_layers": fields["block_count"],
        "num_attention_heads": heads["attn_q"],
        "num_key_value_heads": heads["attn_k"],
        "vocab_size": fields["vocab_size"],
        "max_position_embeddings": fields["context_length"],
        "rope_theta": fields["rope.freq_base"],
        "rms_norm_eps": round(fields["attention.layer_norm_rms_epsilon"], 9),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "bfloat16",
        "bos_token_id": fields["ggml.bos_token_id"],
        "eos_token_id": fields["ggml.eos_token_id"],
        "pad_token_id": fields["ggml.padding_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
