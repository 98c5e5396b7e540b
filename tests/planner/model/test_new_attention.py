"""A kind of attention that the planner has never seen is one class and one line: no other module knows its name."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import inference_planner
import inference_planner.model.attention as attention
import pytest
from inference_planner import plan
from inference_planner.catalog.config import FamilyFacts, ModelConfig
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.read import from_dict
from inference_planner.catalog.weight import Weight
from inference_planner.memory.fit import kv_layout
from inference_planner.model.attention import (
    Attention,
    Peak,
    ProfileRun,
    States,
    Uncertainty,
    Widths,
)
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.model.weights import layer_weights
from inference_planner.tables.hardware import architecture

import workshop

CONFIG = {
    "architectures": ["DigestForCausalLM"],
    "model_type": "digest",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "digest_elements": 96,
}


@dataclass(frozen=True)
class DigestSizes:
    """The sizes of the toy kind, as its config.json names them."""

    elements: int


class Digest(Attention):
    """Every second layer keeps `elements` a token, the others keep one state of 1 MiB a request."""

    key = "digest"
    splits_kv_heads = False
    uncertainty = Uncertainty("digests", gib=0.2)

    def sizes(self, model: ModelConfig) -> DigestSizes | None:
        return next((s for s in model.attention_sizes if isinstance(s, DigestSizes)), None)

    def is_main(self, model: ModelConfig) -> bool:
        return self.sizes(model) is not None

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        return 0 if self.is_main(model) and layer % 2 == 0 else None

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return self.sizes(m).elements

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        return 1

    def describe_share(self, m: ModelConfig, tp: int) -> str:
        return "one digest of every token"

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        return Widths(attn=m.hidden_size, q=m.hidden_size, kv=self.sizes(m).elements)

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        yield Weight("self_attn.digest", self.sizes(m).elements, m.hidden_size)

    def peak(self, m: ModelConfig, run: ProfileRun) -> Peak:
        return Peak("digest", 10 * 2**30, "10 GiB, more than anything else")


class DigestStates(Attention):
    key = "digest states"
    keeps_states = True

    def describe_layers(self, sizes: Sequence[int], of_layers: int) -> str:
        return f"{len(sizes)} of {of_layers} layers keep states of digests"

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        has_it = any(isinstance(s, DigestSizes) for s in model.attention_sizes)
        return 0 if has_it and layer % 2 else None

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return 0

    def states(self, m: ModelConfig, tp: int, draft_tokens: int = 0) -> States:
        blocks = 3 + draft_tokens
        return States(2**20, blocks, recurrence_elements=2**19, has_delta_rule=False)

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        return iter(())

    def cached_tokens(self, tokens: int, size: int) -> int:
        return 0


@pytest.fixture
def model(monkeypatch) -> ModelConfig:
    def read(fields) -> FamilyFacts:
        return FamilyFacts(attention_sizes=(DigestSizes(fields.int("digest_elements")),))

    monkeypatch.setitem(FAMILIES, "DigestForCausalLM", (read, ("digest",)))
    monkeypatch.setattr(attention, "KINDS", (Digest(), DigestStates(), *attention.KINDS))
    return from_dict(CONFIG, name="digest")


def test_its_layers_are_of_the_new_kinds(model):
    assert [kind.key for kind in attention.kinds(model)] == ["digest", "digest states"]
    assert layer_weights(model, 0)[0].name == "self_attn.digest"


def test_a_token_takes_what_the_kind_says(model):
    assert kv_cache_bytes_per_token(model) == 4 * 96 * 2  # four of eight layers, 16 bit


def test_its_plan_has_its_peak_its_states_and_its_words(model):
    p = plan(model, "h100", tensor_parallel_size=2)
    assert p.fits
    assert "digest" in p.overheads[0].reason
    assert p.overheads[0].bytes == 10 * 2**30
    assert "one digest of every token" in " ".join(p.reasons)
    assert "states" in [term.name for term in p.decode]


def test_a_page_of_its_cache_holds_a_state_and_a_request_holds_three(model):
    p = plan(model, "h100", tensor_parallel_size=1)
    layout = kv_layout(model, p.deployment.settings, 1, 1)
    token_bytes = 96 * 2
    assert layout.block_size == 16 * -(-(2**20) // (16 * token_bytes))
    states = [group for group in layout.groups if group.keeps_states]
    assert [group.blocks_per_request for group in states] == [3]


def test_its_name_its_layers_and_its_doubt_are_those_that_the_kinds_say(model):
    assert architecture(model) == "digest, 4 of 8 layers keep states of digests"
    doubts = plan(model, "h100", tensor_parallel_size=1).to_dict()["doubts"]
    assert "digests" in doubts and "latent attention" not in doubts


def test_a_token_is_described_by_its_elements_where_a_kind_says_nothing_else(model):
    assert attention.main_kind(model).describe_token(model) == "96 elements"


# What a ModelConfig has of single kinds of attention.
SIZES_OF_A_KIND = {"mla", "mamba", "latent", "latent_projections", "state_space"}
PLANNER = Path(inference_planner.__file__).parent
OWNERS = (PLANNER / "catalog", PLANNER / "model" / "attention")
MODULES = [
    path
    for folder in (PLANNER, Path(workshop.__file__).parent)
    for path in sorted(folder.rglob("*.py"))
    if not set(OWNERS) & set(path.parents)
]


def sizes_read(source: str) -> list[str]:
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return [node.attr for node in attributes if node.attr in SIZES_OF_A_KIND]


def test_no_module_but_the_catalog_and_the_kinds_reads_the_sizes_of_a_kind():
    """Others ask the kinds of the model's layers."""
    readers = [str(path) for path in MODULES if sizes_read(path.read_text(encoding="utf-8"))]
    assert not readers


def test_a_size_that_is_read_is_seen():
    assert sizes_read("if m.mla or d.model.mamba.layers:\n    pass") == ["mla", "mamba"]


def test_a_step_reads_the_bytes_that_the_kind_says(model, monkeypatch):
    def read_ms(max_model_len: int) -> float:  # another plan, because plans are remembered
        terms = plan(model, "h100", tensor_parallel_size=1, max_model_len=max_model_len).decode
        (ms,) = [term.ms for term in terms if term.name == "KV cache"]
        return ms

    in_16_bit = read_ms(1024)
    assert read_ms(1040) == in_16_bit
    monkeypatch.setattr(Digest, "token_bytes", lambda kind, m, tp, _: kind.token_elements(m, tp))
    assert read_ms(1056) == in_16_bit / 2
