"""The EAGLE-3 head next to the demo's models is a published checkpoint like any other."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.demo.corpus import calibration_files, held_out_files, read_text
from examples.demo.shipped import SHIPPED
from examples.eagle3.demo import KEPT
from rdk_cuda import Affinity
from rdk_cuda.calibration import Method, lift_rows
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.evaluation import measure_acceptance
from rdk_cuda.integrations.eagle3 import Eagle3Drafter, read_checkpoint
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.documents import Text, read_documents
from rdk_cuda.pair.loading import load_pair
from rdk_cuda.pair.pairs import StatePair

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


@pytest.mark.night
def test_lifted_rows_are_accepted_and_rows_of_other_tokens_are_not() -> None:
    """The head never had rows for seven of eight tokens."""
    models = load_pair(SHIPPED / "target", SHIPPED / "eagle3")
    assert isinstance(models, StatePair)
    vocabulary, own = models.kept, models.drafter.network.lm_head.weight.detach()
    assert vocabulary is not None
    documents = read_documents(models.tokenizer, calibration_files()[::4])
    text = torch.tensor([id for document in documents for id in document.ids])
    prior = text.bincount(minlength=vocabulary.target_size).double() + 0.5
    target_head = models.target.get_output_embeddings().weight.detach()
    lifted = lift_rows(target_head, own, vocabulary, prior)
    assert lifted.unexplained < 0.5
    rows = lifted.rows(target_head)
    rows[vocabulary.draft_ids] = own
    mixed = rows.clone()  # the control: rows of the wrong tokens
    shuffled = torch.randperm(len(vocabulary.pruned), generator=torch.Generator().manual_seed(1))
    mixed[vocabulary.pruned] = rows[vocabulary.pruned[shuffled]]
    plain = PrunedDrafter.plain((rows, None), vocabulary)
    heads = [plain, *(Method.full((each, None)).drafter for each in (rows, mixed))]
    held_out = Text(read_documents(models.tokenizer, held_out_files()[:6]), 96)
    rates = measure_acceptance(models.read(4), (rows, None), {1.0: heads}, held_out.windows(576))
    without, right, wrong = rates[1.0].mean((1, 2)).tolist()
    assert right > without + 0.005
    assert right > wrong + 0.01
