"""The studies run, at small sizes, and count what the operators do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.demo import gemma
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
from rdk_cuda.evaluation import Bootstrap
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
    pruning,
    recurrent_states,
    small_drafter,
    steering,
    text_drafters,
    universal_assistance,
    vllm_bookkeeping,
)

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


def test_what_a_rollback_keeps_is_counted(tmp_path: Path) -> None:
    """LFM2's conv states are three columns a layer, and kept with those of a pass beside."""
    layers = ("--layers", "convolution", "attention", "--batch", "2", "--rounds", "1")
    rows = run(recurrent_states, tmp_path / "states.json", *layers)
    assert [(row["states"], row["kept"]) for row in rows] == [
        (6 * 512 * 3 * 4, 6 * 512 * (3 + 3 + 5) * 4),
        (0, 0),
    ]


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


def test_bookkeeping_of_a_worker_is_timed_with_and_without_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_bookkeeping, "SIZES", ((3, 20), (4, 20_000)))
    monkeypatch.setattr(vllm_bookkeeping, "VOCABULARY", (500, 1000))
    monkeypatch.setattr(vllm_bookkeeping, "ROUNDS", 3)
    rows = run(vllm_bookkeeping, tmp_path / "results.json")
    lists, windows, counted = ([row["median_ms"] for row in rows[n::3]] for n in range(3))
    assert min(*lists, *windows, *counted) > 0
    assert lists[1] > 2 * windows[1]  # the longer the contexts are


@pytest.mark.night
def test_steps_are_timed_for_every_head_with_either_sampling(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--size", "tiny", "--context", "16", "--target-layers", "1")
    rows = run(end_to_end, tmp_path / "rows.json", *options, "--batch", "2", "--rounds", "1")
    assert [row["head"] for row in rows] == [head.name for head, _ in end_to_end.VARIANTS]
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert set(row["parts"]) == set(end_to_end.PARTS)
        assert min(row["parts"].values()) > 0


def test_the_decoder_s_own_time_is_measured_next_to_its_operators(tmp_path: Path) -> None:
    rows = run(decoder_time, tmp_path / "rows.json", "--vocabulary=64", "--rounds=1", "--batch=2")
    assert [row["batch"] for row in rows] == [2]
    assert min(rows[0]["operators"], rows[0]["decoder"], rows[0]["ratio"]) > 0
    asked = run(decoder_time, tmp_path / "asked.json", "--sources", "--rounds=1", "--batch=2")
    assert [row["batch"] for row in asked] == [2] * 3
    assert min(row[name] for row in asked for name in ("all", "new")) > 0


@pytest.mark.parametrize("drafter", ["drafter", "eagle3"])
def test_what_proposing_takes_is_measured_next_to_a_drafter_s_passes(drafter: str) -> None:
    rows = decoder_time.proposing(SHIPPED / drafter, 1.0, prompts=1)
    assert [row["way"] for row in rows] == ["chain of 4, by block", "tree of 8 in 4"]
    assert min(row[name] for row in rows for name in ("network", "own")) > 0


@pytest.mark.night
@pytest.mark.parametrize("drafter", ["drafter", "eagle3"])
def test_chains_and_trees_are_compared(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains_and_trees, "DRAFTERS", chains_and_trees.DRAFTERS[:1])
    monkeypatch.setattr(chains_and_trees, "TEMPERATURES", (0.0, 1.0))
    monkeypatch.setattr(chains_and_trees, "training_files", lambda: calibration_files()[:2])
    options = ["--prompts=4", "--tokens=6", "--positions=150"]
    options += ["--drafter", str(SHIPPED / drafter)]
    rows = run(chains_and_trees, tmp_path / "trees.json", *options)
    assert len(rows) == 2 * len(chains_and_trees.WAYS) - 1  # greedy, one rule for chains
    for row in rows:
        assert 0 <= row["accepted"][0] <= row["passes"]
        assert row["speed"][0] > 0


@pytest.mark.night
def test_lengths_and_cascades_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths_and_cascades, "training_files", lambda: calibration_files()[:2])
    monkeypatch.setattr(lengths_and_cascades, "LENGTHS", (2, 3))
    options = ["--positions=800", "--contexts=10", "--prompts=2", "--tokens=8"]
    rows = run(lengths_and_cascades, tmp_path / "rows.json", *options)
    speeds = {(row["name"], row["costs"]): row["speed"] for row in rows}
    assert len(speeds) == len(rows) == 11 * 4
    for costs in ("c = 0.1", "c = 0.3"):
        rules = [row for row in rows if (row["part"], row["costs"]) == ("length", costs)]
        assert max(rules, key=lambda row: row["speed"])["name"] == "oracle"
    assert all(speeds[name, "c = 0.1"] > speeds[name, "c = 0.3"] for name, _ in speeds)


@pytest.mark.night
def test_lifted_rows_are_measured_against_a_drafter_with_all_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = load_model("--target", SHIPPED / "target")
    every = Vocabulary.identity(target.get_output_embeddings().weight.shape[0])
    Eagle3Checkpoint(new_network(target, every, [1, 3, 4]), every).save_pretrained(tmp_path / "all")
    given = ["--full", str(tmp_path / "all"), "--published", str(SHIPPED / "eagle3")]
    sizes = ["--positions=200", "--samples=150", "--compared=20", "--held-out=200", "--threads=1"]
    sizes += ["--train-steps=2", "--data=text", "--work", str(tmp_path)]
    rows = run(lifted_rows, tmp_path / "rows.json", *given, *sizes)
    assert [row["temperature"] for row in rows[::6]] == [1.0, 0.7, 0.0]
    assert [row["method"] for row in rows[4::6]] == ["virtual+dynamic, trained"] * 3
    for row in rows:
        assert row["recovered"] is None, "a drafter that was not trained has nothing to lose"
        plain = row["acceptance"][0] - row["gain"][0]
        assert row["lost"][0] == pytest.approx(row["full"][0] - plain, abs=1e-6)
    assert lifted_rows.main([*given, *sizes, "--tokens=8"]) > 0
    assert "is of other arguments" in capsys.readouterr().err


def test_a_small_drafter_never_takes_the_place_of_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small_drafter.main(["--out", str(tmp_path)]) > 0
    assert "exists; name another folder" in capsys.readouterr().err


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


def test_what_steering_brings_is_over_the_plain_drafter_and_over_the_control() -> None:
    ways = {steering.PLAIN: 0.5, steering.STEERED: 0.75, steering.SHUFFLED: 0.625}
    found = {way: torch.full((4, 6), value) for way, value in ways.items()}
    bootstrap = Bootstrap([0, 0, 1, 2], seed=1)
    plain, steered, shuffled = steering.rows_of(found, bootstrap, draft_length=3)
    assert "gain" not in plain
    assert (steered["gain"][0], steered["over_control"][0], shuffled["gain"][0]) == (
        0.25,
        0.125,
        0.125,
    )


@pytest.mark.night
def test_what_steering_brings_is_measured_next_to_a_control(tmp_path: Path) -> None:
    sizes = ["--steps=6", "--texts=8", "--tokens=8", "--threads=1"]
    plain, steered, shuffled = run(steering, tmp_path / "rows.json", *sizes)
    assert (steered["way"], shuffled["way"]) == ("steered", "shuffled")
    for name, row, other in [
        ("gain", steered, plain),
        ("gain", shuffled, plain),
        ("over_control", steered, shuffled),
    ]:
        difference = row["acceptance"][0] - other["acceptance"][0]
        assert row[name][0] == pytest.approx(difference, abs=1e-7)


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
        (
            measured.acceptance(tokens),
            redistribute(own, affinity, temperature, **offered),
        ),
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


def gemma_target() -> Any:
    """A tiny one in its place."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=8,
        num_attention_heads=2,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tiny_gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An EAGLE-3 drafter with all tokens, of a tiny target that is in place of Gemma."""
    save_pair(tmp_path)
    model, every = gemma_target(), Vocabulary.identity(400)
    model.save_pretrained(tmp_path / "target")
    models = load_pair(tmp_path / "target", tmp_path / "target")
    monkeypatch.setattr(gemma, "load_gemma", lambda: models)
    monkeypatch.setattr(gemma, "weights", lambda: tmp_path / "target")
    monkeypatch.setattr(gemma, "HEAD", tmp_path / "full")
    monkeypatch.setattr(gemma, "fast_dtype", lambda: torch.float32)
    monkeypatch.setattr(gemma, "refuse_missing", lambda: None)
    monkeypatch.setattr(gemma, "terms", lambda: "")
    write(tmp_path / "full", new_network(model, every, None), every, Recipe(steps=1))
    return tmp_path / "full"


@pytest.mark.night
@pytest.mark.parametrize("itself", [True, False])
def test_what_comes_back_for_a_real_model_is_measured_once_by_every_method(
    itself: bool, tiny_gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = training_files()[:60]
    for name, value in {
        "training_files": lambda: files,
        "BUDGETS": (0.9,),
        "BATCHES": (1,),
        "VIRTUAL": 4,
        "COUNTED": 5,
        "_LEAST_WIDTH": 64,
    }.items():
        monkeypatch.setattr(gemma_acceptance, name, value)
    options = ["--text", "code", "--keep", "0.25"]
    options += [] if itself else ["--full", str(tiny_gemma)]
    rows = run(gemma_acceptance, tmp_path / "rows.json", *options)
    cells = [gemma_acceptance.cells(row)[:3] for row in rows]
    assert len({tuple(each) for each in cells}) == len(cells) >= 8
    for row in rows:
        if "lost" in row:
            assert row["lost"][0] == pytest.approx(row["full"][0] - row["pruned"][0], abs=1e-6)
        elif row["method"] == "all" and row["recovered"]:
            assert row["recovered"][0] > 0.5


@pytest.mark.night
def test_each_draft_length_is_compared_with_the_target_alone(
    tiny_gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = training_files()[:40]
    for module in ("examples.demo.calibration", "studies.gemma_decoding"):
        monkeypatch.setattr(f"{module}.training_files", lambda: files)
    options = ["--device", "cpu", "--batch", "1", "2", "--draft-length", "2", "--tokens", "12"]
    rows = run(gemma_decoding, tmp_path / "rows.json", *options, "--rounds", "2")
    cases = [(row["temperature"], row["batch"], row["draft_length"]) for row in rows]
    assert cases == [(at, batch, k) for at in (0.0, 1.0) for batch in (1, 2) for k in (0, 2)]
    for row in rows:
        alone = row["draft_length"] == 0
        assert (row["speed_up"] == row["while_all"] == [1.0, 1.0, 1.0]) == alone
        assert (row["draft_milliseconds"][0] == 0) == (row["tokens_a_pass"] == 1) == alone
        assert row["pass_milliseconds"][0] > 0


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


@pytest.mark.night
def test_sampled_assistance_is_exact_here_and_the_control_is(tmp_path: Path) -> None:
    rows = run(universal_assistance, tmp_path / "result.json", "--runs", "150")
    fits = {row["method"]: row["first"]["probability"] for row in rows}
    assert len(fits) == 5
    # How far it is off depends on an order that each process draws anew.
    del fits["Transformers, universal assistance"]
    assert min(fits.values()) > 1e-6


@pytest.mark.night
def test_drafters_with_other_tokenizers_are_compared_each_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model in the place of Gemma; Transformers drafts for a batch of one alone."""
    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=2010, num_hidden_layers=1, eos_token_id=None, **size)
    small = LlamaForCausalLM(config).eval()
    demo = load_model("--target", SHIPPED / "drafter"), load_tokenizer("", SHIPPED / "target")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    models = [text_drafters.Model("demo", *demo), text_drafters.Model("tiny", small, tokenizer)]
    monkeypatch.setattr(text_drafters, "both", lambda other: models)
    options = ("--prompts", "2", "--new", "6", "--rounds", "1")
    rows = run(text_drafters, tmp_path / "new" / "result.json", *options)
    assert len(rows) == 2 * 3 * (9 + 8)
    assert all(row["tokens_per_second"][0] > 0 for row in rows)
    drafted = [row for row in rows if row["method"] not in ("target alone", "Transformers")]
    assert all(0 <= row["acceptance"] <= 1 for row in drafted)
