"""A trained head with a quarter of the demo's tokens, for which rows of the others are lifted."""

from pathlib import Path

import pytest
import torch

from examples.demo.corpus import calibration_files, held_out_files
from rdk_cuda.calibration import Method, PrunedDrafter, lift_rows
from rdk_cuda.cli.documents import Text, read_documents
from rdk_cuda.cli.models import load_models
from rdk_cuda.cli.pairs import StateModels
from rdk_cuda.evaluation import measure_acceptance

HEAD = Path(__file__).with_name("demo_head")
TARGET = Path(__file__).parents[3] / "examples/demo/models/target"


@pytest.mark.slow
def test_lifted_rows_are_accepted_and_rows_of_other_tokens_are_not() -> None:
    models = load_models(TARGET, HEAD)
    assert isinstance(models, StateModels)
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
