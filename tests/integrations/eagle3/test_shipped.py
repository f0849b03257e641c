"""The EAGLE-3 head next to the demo's models is a published checkpoint like any other."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.demo.corpus import held_out_files, read_text
from examples.demo.shipped import SHIPPED
from examples.eagle3.demo import KEPT
from rdk_cuda import Affinity
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.eagle3 import Eagle3Drafter, read_checkpoint
from rdk_cuda.integrations.huggingface import HuggingFaceModel

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_drafts_what_the_target_says() -> None:
    """Above one draft in three, which no untrained head reaches, and greedily nothing else."""
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "target", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "target")
    checkpoint = read_checkpoint(SHIPPED / "eagle3", model)
    assert len(checkpoint.vocabulary.draft_ids) == KEPT
    drafter = Eagle3Drafter(checkpoint.network, model.config.num_hidden_layers)
    assert drafter.state_layers == (2, 16, 29)  # EAGLE-3's own choice
    decoder = SpeculativeDecoder(
        HuggingFaceModel(model, state_layers=drafter.state_layers),
        drafter,
        Affinity.intersection(checkpoint.vocabulary),
        draft_length=3,
    )
    prompts = [tokenizer(read_text(file))["input_ids"][:48] for file in held_out_files()[:4]]
    made = decoder.generate(prompts, max_new_tokens=40, temperature=0.0)
    for prompt, text in zip(prompts, made.tokens, strict=True):
        whole = torch.tensor([[*prompt, *text]])
        with torch.no_grad():
            likeliest = model(whole).logits.argmax(-1)[0, len(prompt) - 1 : -1]
        assert likeliest.tolist() == list(text)
    assert sum(made.statistics.accepted) > sum(made.statistics.drafted) / 3
