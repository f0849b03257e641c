"""A tiny EAGLE-3 drafter, written and run by the speculators library: FOLDER llama|qwen3."""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import DynamicCache, LlamaConfig, Qwen3Config

SIZE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "head_dim": 8,
}
VARIANTS = {
    "llama": {"norm_before_residual": True, "norm_before_fc": True},
    "qwen3": {"fc_norm": True, "norm_output": True},
}


def random_model(kind: str) -> Any:
    """Their model with weights large enough to tell variants apart."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind](**SIZE)
    layer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(proposal_type="greedy", speculative_tokens=3)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=12,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        eagle_aux_hidden_state_layer_ids=[1, 2, 4],
        **VARIANTS[kind],
    )
    model = Eagle3DraftModel(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    kept = torch.randperm(40)[:12].sort().values
    model.load_vocab_mappings(
        torch.zeros(40).bool().index_fill(0, kept, True), kept - torch.arange(12)
    )
    return model


def logits_along_a_draft(model: Any, tokens: Any, states: Any, drafted: Any) -> Any:
    """The steps of their `forward`, whose own drafts are replaced by the drafted tokens."""
    if model.input_norm is not None:
        states = model.input_norm(states)
    if model.fc_norm is not None:
        parts = zip(model.fc_norm, states.chunk(3, -1), strict=True)
        states = torch.cat([norm(part) for norm, part in parts], -1)
    states, cache, seen, logits = model.fc(states), DynamicCache(), 0, []
    for ids in (tokens, *drafted.view(-1, 1, 1)):
        count = ids.shape[1]
        positions = torch.arange(seen, seen + count)[None]
        seen += count
        mask = torch.full((count, seen), -torch.inf).triu(seen - count + 1)[None, None]
        both = torch.cat([model.embed_tokens(ids), states[:, -count:]], -1)
        states = model.layers[0](
            both,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            position_embeddings=model.rotary_emb(both, positions),
        )
        normalised = model.norm(states)
        states = normalised if model.config.norm_output else states
        logits.append(model.lm_head(normalised))
    return torch.cat(logits, 1)


@torch.no_grad()
def main(folder: Path, kind: str) -> None:
    """Write the model in its own format, and what it makes of random input."""
    torch.manual_seed(6)
    model = random_model(kind)
    tokens, states = torch.randint(0, 40, (1, 9)), torch.randn(1, 9, 48)
    drafted = torch.tensor([7, 3])
    logits = logits_along_a_draft(model, tokens, states, drafted)
    own = model(
        hidden_states=states,
        input_ids=tokens,
        document_ids=torch.zeros_like(tokens),
        position_ids=torch.arange(9)[None],
        ttt_steps=1,
    )
    assert torch.equal(own[0], logits[:, :9].argmax(-1)), "their forward says something else"
    model.save_pretrained(folder)
    expected = {"ids": tokens, "states": states, "drafted": drafted, "logits": logits}
    expected["kept"] = model.t2d.nonzero()[:, 0]
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
