"""The studies run, at small sizes, and count what the operators do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from examples.demo.corpus import calibration_files, training_files
from examples.demo.shipped import SHIPPED
from examples.eagle3.__main__ import new_network, write
from examples.eagle3.training import Recipe
from profiling.bench.page import page as bench_page
from profiling.bench.truncation import summary as truncation_page
from profiling.machine import ROOT
from profiling.peers.page import page as peers_page
from rdk_cuda import Affinity, Vocabulary, redistribute
from rdk_cuda.calibration import low_rank_factors
from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint
from rdk_cuda.recipes.inputs.loading import load_model, load_pair, load_tokenizer
from rdk_cuda.recipes.inputs.pairs import ModelPair
from studies import (
    chains_and_trees,
    decoder_time,
    end_to_end,
    first_order_growth,
    gemma_acceptance,
    gemma_decoding,
    lengths_and_cascades,
    lifted_rows,
    multi_token_heads,
    pruning,
    recurrent_states,
    small_drafter,
    steering,
    text_drafters,
    universal_assistance,
    vllm_bookkeeping,
)

from ..tiny_llamas import llama
from ..tiny_models import save_pair
from ..trained_tokenizers import byte_level

pytestmark = pytest.mark.usefixtures("one_thread")

RESULTS = ROOT / "profiling" / "results"
PAGES = {
    "bench-cpu/serving": bench_page,
    "bench-cpu/truncation": truncation_page,
    "end-to-end/cpu-serving": end_to_end.page,
    "gemma-decoding/cpu": gemma_decoding.page,
    "gemma-heads/cpu": gemma_acceptance.page,
    "gemma-screens/cpu": gemma_acceptance.page,
    "lifted-rows/demo": lifted_rows.page,
    "lifted-rows/gemma": lifted_rows.page,
    "multi-token-heads/cpu": multi_token_heads.acceptance_page,
    "multi-token-heads/peers-cpu": multi_token_heads.acceptance_page,
    "multi-token-heads/simulation": multi_token_heads.simulation_page,
    "peers/cpu": peers_page,
    "recurrent-states/cpu": recurrent_states.page,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_next_to_a_result_is_what_its_program_writes(name: str) -> None:
    rows = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
    assert (RESULTS / f"{name}.md").read_text("utf-8") == f"{PAGES[name](rows)}\n"
    assert PAGES[name](rows[:-1]) != PAGES[name](rows)


def run(study: Any, output: Path, *options: str) -> list[Any]:
    """The rows that a study writes; it names no place on this machine."""
    assert study.main([*options, "--output", str(output)]) == 0
    text = output.read_text("utf-8")
    assert str(output.parent) not in text
    rows: list[Any] = json.loads(text)["rows"]
    return rows


# ------------------------------------------------------------------- each at its smallest size


class Study(NamedTuple):
    """What it is run with, and a committed result of it. `patches` are made when it is run."""

    module: ModuleType
    result: str
    options: str = ""
    patches: Callable[[pytest.FixtureRequest], dict[str, Any]] = lambda request: {}


def few_files(*modules: str, count: int = 2) -> Callable[[pytest.FixtureRequest], dict[str, Any]]:
    files = calibration_files()[:count]
    return lambda request: dict.fromkeys((f"{m}.training_files" for m in modules), lambda: files)


def tiny_text_models(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A tiny model in the place of Gemma; Transformers drafts for a batch of one alone."""
    small = llama(2010, eos_token_id=None)
    demo = load_model("--target", SHIPPED / "drafter"), load_tokenizer("", SHIPPED / "target")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    models = [text_drafters.Model("demo", *demo), text_drafters.Model("tiny", small, tokenizer)]
    return {"studies.text_drafters.both": lambda other: models}


def tiny_gemma(request: pytest.FixtureRequest) -> dict[str, Any]:
    """In the place of Gemma a tiny target, with an EAGLE-3 drafter of all tokens."""
    folder = request.getfixturevalue("tmp_path_factory").mktemp("gemma")
    save_pair(folder)
    model, every = llama(400, seed=1, layers=8, initializer_range=0.4), Vocabulary.identity(400)
    model.save_pretrained(folder / "target")
    models = load_pair(folder / "target", folder / "target")
    write(folder / "full", new_network(model, every, None), every, Recipe(steps=1))
    found: dict[str, Any] = {
        "load_gemma": lambda: models,
        "weights": lambda: folder / "target",
        "HEAD": folder / "full",
        "fast_dtype": lambda: torch.float32,
        "refuse_missing": lambda: None,
        "terms": lambda: "",
    }
    patches = {f"examples.demo.gemma.{name}": value for name, value in found.items()}
    files = training_files()[:60]
    for module in (
        "examples.demo.calibration",
        "studies.gemma_decoding",
        "studies.gemma_acceptance",
    ):
        patches[f"{module}.training_files"] = lambda: files
    sizes = {"BUDGETS": (0.9,), "BATCHES": (1,), "VIRTUAL": 4, "COUNTED": 5, "_LEAST_WIDTH": 64}
    return patches | {f"studies.gemma_acceptance.{name}": size for name, size in sizes.items()}


def full_drafter(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One of all tokens for the demo's target, where the options below say."""
    target = load_model("--target", SHIPPED / "target")
    every = Vocabulary.identity(target.get_output_embeddings().weight.shape[0])
    network = new_network(target, every, [1, 3, 4])
    Eagle3Checkpoint(network, every).save_pretrained(request.getfixturevalue("tmp_path") / "all")
    return {}


TREES = {
    "studies.chains_and_trees.DRAFTERS": chains_and_trees.DRAFTERS[:1],
    "studies.chains_and_trees.TEMPERATURES": (0.0, 1.0),
}
FAST = [
    Study(
        recurrent_states,
        "recurrent-states/cpu",
        "--layers convolution attention --batch 2 --rounds 1",
    ),
    Study(
        vllm_bookkeeping,
        "vllm/bookkeeping",
        patches=lambda request: {
            "studies.vllm_bookkeeping.SIZES": ((3, 20), (4, 200)),
            "studies.vllm_bookkeeping.VOCABULARY": (500, 1000),
            "studies.vllm_bookkeeping.ROUNDS": 1,
        },
    ),
]
SLOW = [
    Study(
        end_to_end,
        "end-to-end/gpu-serving",
        "--device cpu --size tiny --context 16 --target-layers 1 --batch 2 --rounds 1",
    ),
    *(
        Study(
            chains_and_trees,
            "trees/demo",
            f"--prompts=4 --tokens=6 --positions=150 --drafter {SHIPPED / drafter}",
            lambda request: TREES | few_files("studies.chains_and_trees")(request),
        )
        for drafter in ("drafter", "eagle3")
    ),
    Study(
        lengths_and_cascades,
        "drafting/demo",
        "--positions=800 --contexts=10 --prompts=2 --tokens=8",
        lambda request: (
            {"studies.lengths_and_cascades.LENGTHS": (2, 3)}
            | few_files("studies.lengths_and_cascades")(request)
        ),
    ),
    Study(
        lifted_rows,
        "lifted-rows/demo",
        f"--full {{folder}}/all --published {SHIPPED / 'eagle3'} --positions=200 --samples=150 "
        "--compared=20 --held-out=200 --threads=1 --work {folder}",
        full_drafter,
    ),
    Study(steering, "steering/cpu", "--steps=6 --texts=8 --tokens=8 --threads=1"),
    Study(universal_assistance, "universal-assistance/cpu", "--runs 150"),
    Study(text_drafters, "text-drafters/demo", "--prompts 2 --new 6 --rounds 1", tiny_text_models),
    Study(gemma_acceptance, "gemma-screens/cpu", "--text code --keep 0.25", tiny_gemma),
    Study(
        gemma_decoding,
        "gemma-decoding/cpu",
        "--device cpu --batch 1 2 --draft-length 2 --tokens 12 --rounds 2",
        tiny_gemma,
    ),
]


@pytest.mark.parametrize(
    "study",
    [*FAST, *(pytest.param(study, marks=pytest.mark.night) for study in SLOW)],
    ids=lambda study: study.module.__name__.rpartition(".")[2],
)
def test_a_study_runs_and_its_rows_have_the_fields_of_its_result(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name, value in study.patches(request).items():
        monkeypatch.setattr(name, value)
    options = study.options.format(folder=tmp_path).split()
    rows = run(study.module, tmp_path / "rows.json", *options)
    recorded = json.loads((RESULTS / f"{study.result}.json").read_text("utf-8"))["rows"]
    found = {key for row in rows for key in row}
    assert {key for key, value in recorded[0].items() if value is not None} <= found


def test_first_order_grows_linearly_and_the_dense_matrix_quadratically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"first-order": (4096, 8192, 16384, 32768), "dense": (1024, 1536, 2048, 3072)}
    monkeypatch.setattr(first_order_growth, "SIZES", sizes)
    monkeypatch.setattr(first_order_growth, "ROUNDS", 9)
    fitted = first_order_growth.exponents(run(first_order_growth, tmp_path / "rows.json"))
    assert fitted["first-order"] < 1.3
    assert fitted["dense"] > 1.6
    content = json.loads(first_order_growth.RESULTS.read_text())
    assert content["exponents"] == pytest.approx(first_order_growth.exponents(content["rows"]))


def test_the_decoder_s_own_time_is_measured_next_to_its_operators(tmp_path: Path) -> None:
    rows = run(decoder_time, tmp_path / "rows.json", "--vocabulary=64", "--rounds=1", "--batch=2")
    assert [row["batch"] for row in rows] == [2]
    assert min(rows[0]["operators"], rows[0]["decoder"], rows[0]["ratio"]) > 0
    asked = run(decoder_time, tmp_path / "asked.json", "--sources", "--rounds=1", "--batch=2")
    assert [row["batch"] for row in asked] == [2] * 3
    assert min(row[name] for row in asked for name in ("all", "new")) > 0


@pytest.mark.parametrize("drafter", ["drafter", pytest.param("eagle3", marks=pytest.mark.ci)])
def test_what_proposing_takes_is_measured_next_to_a_drafter_s_passes(drafter: str) -> None:
    rows = decoder_time.proposing(SHIPPED / drafter, 1.0, prompts=1)
    assert [row["way"] for row in rows] == ["chain of 4, by block", "tree of 8 in 4"]
    assert min(row[name] for row in rows for name in ("network", "own")) > 0


def test_a_small_drafter_has_layers_of_its_target_and_learns_what_that_says() -> None:
    target = load_model("--target", SHIPPED / "target")
    random = torch.Generator().manual_seed(1)
    text = torch.randint(len(target.get_output_embeddings().weight), (500,), generator=random)
    every = range(target.config.num_hidden_layers)
    same = small_drafter.small(target, every)
    assert torch.equal(same(text[None, :9]).logits, target(text[None, :9]).logits)
    model = small_drafter.small(target, (0, every[-1]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    how = {"steps": 4, "learning_rate": 1e-3, "seed": 1}
    first, *_, last = small_drafter.steps_of(target, model, text, 0, **how)
    assert last < first
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed, "nothing was trained"
    assert not any("embed" in name or "lm_head" in name for name in changed)


TOKENS, WIDTH = 40, 8


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_acceptance_at_recorded_positions_is_that_of_the_operator(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(1)
    head = torch.randn(TOKENS, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    states[1] = states[0] + 0.5 * states[1]
    vocabulary, mean_probs = Vocabulary(list(range(10)), TOKENS), torch.rand(TOKENS).double()
    tokens = torch.randint(10, TOKENS, (140, 1), generator=random).int()
    recorded = gemma_acceptance.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    measured = gemma_acceptance.Measured(head, recorded, vocabulary, temperature)
    target, logits = states.flatten(1, 2) @ head.T
    own, everything = logits[:, :10], Affinity.intersection(Vocabulary.identity(TOKENS))
    affinity = Affinity.intersection(vocabulary)
    chosen = logits.gather(1, tokens.long())
    offered = {"dynamic_tokens": tokens, "dynamic_logits": chosen}
    found = [
        (measured.pruned, redistribute(own, affinity, temperature)),
        (measured.full, redistribute(logits, everything, temperature)),
        (measured.acceptance(tokens), redistribute(own, affinity, temperature, **offered)),
    ]
    factors = low_rank_factors((head, None), vocabulary, torch.eye(WIDTH), WIDTH)
    monkeypatch.setattr(gemma_acceptance, "VIRTUAL", 4)
    drafter, remainder = gemma_acceptance.virtual_tokens(
        head, vocabulary, factors[0], mean_probs, temperature
    )
    logits = states[1].flatten(0, 1) @ drafter.weight.T
    q = redistribute(logits, drafter.affinity, temperature, **offered)
    found.append((measured.acceptance(tokens, remainder), q))
    for got, q in found:
        p = redistribute(target, everything, temperature)
        torch.testing.assert_close(
            got.float(), torch.minimum(p, q).sum(-1).view(2, 70), rtol=1e-4, atol=1e-5
        )


@pytest.mark.night
def test_the_study_of_pruning_has_every_size_method_and_text(
    tiny: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "load_shipped", lambda: tiny)
    monkeypatch.setattr(pruning, "KEEPS", (0.5, 0.25))
    monkeypatch.setattr(pruning, "EXACT_SIZES", (64,))
    output = tmp_path / "pruning.json"
    options = ("--positions", "200", "--length", "40", "--output", str(output))
    assert pruning.main(options) == 0
    found = json.loads(output.read_text())
    texts = len({row["text"] for row in found["rows"]})
    assert len(found["rows"]) == texts * (1 + len(pruning.METHODS) * 3)
    assert [row["prior"] for row in found["priors"]] == list(pruning.PRIORS)
    assert [row["form"] for row in found["exactness"]] == ["exact", "first order"]
    assert all(0 <= row["value"] <= 1 for row in found["rows"])
    assert output.with_suffix(".png").is_file()


def test_the_study_of_pruning_refuses_a_folder_before_an_hour_s_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pruning.main(["--output", str(tmp_path)]) == 2
    assert f"--output {tmp_path} is a folder" in capsys.readouterr().err
