"""A tiny EAGLE-3 or EAGLE-2 drafter, written and run by EAGLE's own code.

eagle.py PATH_OF_EAGLE FOLDER [eagle2]
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 40,
    "torch_dtype": "float32",
}
GREEDY = 4  # drafts of a tree with one branch


def random_network(cnets: Any, config: Any, eagle2: bool) -> Any:
    """Their network with weights large enough to tell variants apart."""
    chain = {"total_tokens": GREEDY + 1, "depth": GREEDY - 1, "top_k": 1} if eagle2 else {}
    network = cnets.Model(config, load_emb=False, **chain).eval()
    for name, parameter in network.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.3)
    if not eagle2:
        kept = torch.randperm(40)[:12].sort().values
        network.d2t.copy_(kept - torch.arange(12))
        network.t2d[kept] = True
    network.init_tree()
    network.reset()
    return network


@torch.no_grad()
def main(source: str, folder: Path, eagle2: bool) -> None:
    """Write `config.json`, the weights and what the network makes of random input."""
    sys.path.insert(0, f"{source}/eagle/model")
    from configs import EConfig

    torch.manual_seed(6 if eagle2 else 5)
    fields = FIELDS if eagle2 else FIELDS | {"draft_vocab_size": 12}
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    config = EConfig.from_pretrained(str(folder / "config.json"))
    config.pretraining_tp, config.rope_scaling = 1, None
    cnets = import_module("cnets1" if eagle2 else "cnets")
    network = random_network(cnets, config, eagle2)
    own = {k: v for k, v in network.state_dict().items() if not ("embed" in k or "rotary" in k)}
    torch.save(own, folder / "pytorch_model.bin")
    head = torch.nn.Linear(16, 40, bias=False) if eagle2 else network.lm_head  # the target's
    tokens, states = torch.randint(0, 40, (1, 9)), torch.randn(1, 9, 16 if eagle2 else 48)
    hidden, past = network(states, input_ids=tokens, use_cache=True)
    outputs, drafted = [hidden], torch.tensor([7, 3])
    for token in drafted:
        last = outputs[-1][:, -1:]
        hidden, past = network(
            last, input_ids=token.view(1, 1), past_key_values=past, use_cache=True
        )
        outputs.append(hidden)
    expected = {
        "ids": tokens,
        "states": states,
        "drafted": drafted,
        "embedding": network.embed_tokens.weight,
    }
    made = torch.cat(outputs, 1)
    if eagle2:
        network.reset_kv()
        ids = torch.cat([torch.tensor([[5]]), tokens], 1)  # they leave out the first token
        greedy, *_ = network.topK_genrate(states, ids, head, None)
        expected |= {"greedy": greedy[0, 1:], "head": head.weight, "logits": head(made)}
        expected["kept"] = torch.arange(40)
    else:
        expected["logits"] = head(network.norm(made))
        expected["kept"] = network.t2d.nonzero()[:, 0]
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] == ["eagle2"])
