"""Multi-token heads in the decoder: lossless in chains and trees, with whole and trimmed heads."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from table_model import chi_square, continuations, joint_of, judge_by_another_q

pytest.importorskip("transformers", minversion="5.24")
from transformers.modeling_layers import MtpModel

from examples.demo.corpus import held_out_files, read_text
from rdk_cuda import Affinity, CombinedTokens, RecentTokens, ScreenedTokens, Vocabulary
from rdk_cuda.__main__ import main
from rdk_cuda.calibration import Options, Setting, Window, calibrate, record
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder, StateDrafter
from rdk_cuda.drafter import PrunedDrafter, prune_head
from rdk_cuda.integrations.eagle3 import read_drafts, unrolled_read
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.mtp import DeepMtpDrafter, MtpDrafter, MtpNetwork
from rdk_cuda.recipes.inputs import pairs
from studies.multi_token_heads import peers_of
from studies.transformers_peers import generated, library_mtp

from ...tiny_models import save_tokenizer
from ..eagle3.test_drafter import Checked
from .heads import HEADS, head_of, make, publish

ROOT = Path(__file__).parents[3]

SIZE = 6
PROMPTS = [[5, 3, 1, 7, 2], [4], [1, 2, 3, 4, 5, 9, 1, 2, 3]]
FEW = ("qwen3_5_text", "deepseek_v3", "mimo", "nemotron_h")
EACH = [pytest.param(name, marks=[] if name in FEW else pytest.mark.ci) for name in HEADS]

WHOLE = Affinity.intersection(Vocabulary.identity(12))


@cache
def parts(name: str, size: int = 61, layers: int = 1) -> tuple[HuggingFaceModel, MtpNetwork]:
    target = make(name, vocab_size=size)
    network = head_of(target)
    network.further = [head_of(target, number) for number in range(1, layers)]
    if not network.family.norm:  # nothing else keeps its head's rows from being nearly certain
        for weight in network.parameters():
            weight.mul_(0.3 if weight.dim() > 1 else 1.0)
    spread = 0.3 if size == SIZE else 0.15
    torch.nn.init.normal_(target.get_output_embeddings().weight.data, std=spread)
    return HuggingFaceModel(target, state_layers=(network.target_layers,)), network


@pytest.mark.parametrize("name", EACH)
def test_greedy_output_is_the_target_s_own_in_ragged_batches(name: str) -> None:
    target, network = parts(name, size=12)
    settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0}
    alone = SpeculativeDecoder(target, draft_length=0).generate(PROMPTS, **settings).tokens
    drafter, accepted = MtpDrafter(network), 0
    assert isinstance(drafter, StateDrafter)
    tree = DrafterTree(drafter, WHOLE, nodes=7, passes=3, width=3)
    for options in ({"drafter": drafter, "draft_length": 3}, {"proposer": tree}):
        result = SpeculativeDecoder(target, **options).generate(PROMPTS, **settings)
        assert result.tokens == alone
        accepted += sum(result.statistics.accepted)
    assert accepted > 0 or name == "ernie4_5_moe"  # whose greedy text is one token, over and over


@pytest.mark.parametrize("name", EACH)
def test_drafts_and_nodes_are_what_the_sequence_read_at_once_shows(name: str) -> None:
    target, network = parts(name, size=12)
    checked = Checked(network, network.target_layers)
    checked.model = target.model
    tree = DrafterTree(checked, WHOLE, nodes=7, passes=3, width=3)
    for options in ({"drafter": checked, "draft_length": 3}, {"proposer": tree}):
        decoder = SpeculativeDecoder(target, **options)
        statistics = decoder.generate(PROMPTS, max_new_tokens=10, seeds=[1, 2, 3]).statistics
        assert sum(statistics.accepted) > 0
    assert checked.compared > 60


def test_generate_takes_it() -> None:
    target, network = parts("qwen3_5_text", size=12)
    drafter = MtpDrafter(network)
    ids = torch.tensor([[0, 0, 5, 3, 1], [4, 4, 4, 4, 4]])
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    settings["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    alone = target.model.generate(ids, **settings)
    tree = DrafterTree(drafter, WHOLE, nodes=5, passes=2, width=2)
    for generate in (Generate(drafter, draft_length=3), Generate(tree)):
        drafted = target.model.generate(ids, **settings, custom_generate=generate)
        assert torch.equal(drafted, alone)
        assert sum(generate.statistics.drafted) > 0


# Losslessness.

KEPT, PROMPT = Vocabulary([0, 2, 5], target_size=6), [2, 4]


def decoder(name: str, head: str, method: Any) -> SpeculativeDecoder:
    target, network = parts(name, SIZE)
    options: dict[str, Any] = {"draft_length": 2, "method": method}
    if head == "full":
        return SpeculativeDecoder(target, MtpDrafter(network), **options)
    weight, affinity = network.lm_head.weight, Affinity.intersection(KEPT)
    if head == "dynamic":
        clusters = torch.tensor([-1, 0, -1, 0, 0, -1])
        affinity = Affinity.virtual_tokens(KEPT, clusters, torch.tensor([1.0, 2, 1, 1, 3, 1]))
        pruned = weight[KEPT.pruned] @ (right := torch.linalg.svd(weight)[2][:2]).T
        screen = ScreenedTokens.from_factors(KEPT, pruned, right, width=1)
        sources = [RecentTokens(KEPT, width=1), screen]
        options |= {"dynamic_tokens": CombinedTokens(sources, KEPT, width=2), "vocabulary": KEPT}
    small = prune_head(weight, network.lm_head.bias, KEPT, virtual=affinity)
    drafter = MtpDrafter(network, head=small[0], head_bias=small[1])
    return SpeculativeDecoder(target, drafter, affinity, **options)


def p_value(name: str, head: str, method: str, samples: int = 4_000) -> float:
    """Chi-square of three tokens; fixed seeds. A right decoder fails `> 1e-4` once in 10,000."""
    found = continuations(lambda: decoder(name, head, method), PROMPT, 3, samples)
    return chi_square(found, joint_of(parts(name, SIZE)[0].model, PROMPT, 3))


def cases() -> list[Any]:
    fast = {("qwen3_5_text", "dynamic", "block")}
    return [
        pytest.param(*case, marks=[] if case in fast else pytest.mark.night)
        for name in HEADS
        for head in ("full", "trimmed", "dynamic")
        for method in ("token", "block")
        for case in [(name, head, method)]
    ]


@pytest.mark.parametrize(("name", "head", "method"), cases())
def test_samples_have_the_target_s_distribution(name: str, head: str, method: str) -> None:
    assert p_value(name, head, method) > 1e-4


@pytest.mark.parametrize(("name", "head", "method"), cases())
def test_control_drafts_judged_by_another_q_are_caught(
    name: str, head: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_by_another_q(monkeypatch)
    assert p_value(name, head, method) < 1e-6


# Trimming.


def test_it_is_calibrated_as_it_drafts_and_no_head_is_copied(tmp_path: Any) -> None:
    target, network = parts("qwen3_5_text")
    drafter = MtpDrafter(network)
    own = target.model.get_output_embeddings().weight
    assert drafter.full_head[0].data_ptr() == own.data_ptr() == drafter._head[0].data_ptr()
    texts = [torch.randint(1, 61, (33,), generator=torch.manual_seed(n)).tolist() for n in range(6)]
    read = read_drafts(target, drafter, 3)
    recording = record(read, [Window(n, text) for n, text in enumerate(texts)])
    options = Options(virtual=4, dynamic=8)
    (found,) = calibrate(recording, drafter.full_head, texts, [Setting(0.25, 1.0)], options=options)
    found.method.drafter.save(tmp_path / "drafter.safetensors")
    pruned = PrunedDrafter.load(tmp_path / "drafter.safetensors")
    small = MtpDrafter(network, head=pruned.weight, head_bias=pruned.bias)
    assert small.full_head[0].data_ptr() == own.data_ptr()
    source = {"dynamic_tokens": pruned.dynamic_tokens, "vocabulary": pruned.vocabulary}
    generate = Generate(small, pruned.affinity, draft_length=3, **source)
    ids = torch.tensor(PROMPTS[:1])
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = target.model.generate(ids, **settings)
    assert torch.equal(target.model.generate(ids, **settings, custom_generate=generate), expected)


def test_the_tutorial_goes_from_a_directory_to_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make("qwen3_5_text", vocab_size=400, max_position_embeddings=512)
    publish(tmp_path / "Qwen3.5-4B", target, head_of(target), name="qwen3_5_text")
    save_tokenizer(tmp_path / "Qwen3.5-4B")
    for name, file in zip("abc", held_out_files(), strict=False):
        (tmp_path / f"{name}.txt").write_text(read_text(file)[:3000])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "TIMING_SECONDS", 0.0)
    page = (ROOT / "docs" / "tutorial.md").read_text().split("## Drafters that models bring")[1]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    calibration, evaluation, written = block.splitlines()
    assert "--keep 0.125" in calibration
    small = "--keep 0.75 --positions 300 --virtual 8 --dynamic 12"  # it keeps 257 special tokens
    for line in (f"{calibration} {small}", evaluation):
        assert main(line.removeprefix("python -m rdk_cuda ").split()) == 0
    assert written == "python write.py"
    names: dict[str, Any] = {}
    exec(code, names)
    assert sum(names["draft"].statistics.drafted) > 0
    assert (tmp_path / "evaluation" / "evaluation.json").is_file()


@pytest.mark.parametrize("head", [torch.ones(3, 32).long(), torch.ones(0, 32), torch.ones(3, 31)])
@pytest.mark.parametrize("kind", [MtpDrafter, DeepMtpDrafter])
def test_heads_that_nothing_can_be_drafted_with_are_refused(kind: Any, head: torch.Tensor) -> None:
    _, network = parts("qwen3_5_text")
    with pytest.raises(ValueError, match=f"^{kind.__name__}: head .*needs floats"):
        kind(network, head=head)


@pytest.mark.parametrize("name", ["qwen3_5_text", "mimo", "ernie4_5_moe"])
def test_unrolled_it_reads_the_same_with_gradients(name: str) -> None:
    target, network = parts(name)
    ids = torch.tensor([[5, 3, 1, 9, 2, 4, 4, 1], [4, 2, 2, 9, 11, 5, 3, 6]])
    expected = read_drafts(target, MtpDrafter(network), 3)(ids)
    network.fc.requires_grad_()
    found = unrolled_read(target.model, network, 3)(ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(found.hidden.sum(), network.fc.weight)
    assert bool(gradient.any())
    network.fc.requires_grad_(False)


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3"])
def test_it_drafts_what_the_library_s_own_generator_does(name: str) -> None:
    model = make(name, vocab_size=12)
    network = head_of(model)
    with library_mtp(model, network) as options:
        text, theirs = generated(model, PROMPTS[0], temperature=0, seed=0, tokens=40, **options)
    target = HuggingFaceModel(model, state_layers=(network.target_layers,))
    decoder = SpeculativeDecoder(target, MtpDrafter(network), draft_length=1)
    found = decoder.generate(PROMPTS[:1], max_new_tokens=40, temperature=0)
    assert found.tokens == [text]
    assert 0 < sum(found.statistics.accepted) == theirs.accepted
    assert found.statistics.target_passes == theirs.passes


def test_the_library_s_own_generator_refuses_targets_with_states() -> None:
    target, network = parts("qwen3_5_text", size=12)
    with ExitStack() as stack:
        rows = peers_of(stack, target.model, network, None, tokens=4)
    reasons = [row["refused"] for row in rows if isinstance(row, dict)]
    assert len(reasons) == 2
    assert all("not supported with stateful models" in reason for reason in reasons)


# Heads of several layers.


def deep(size: int = 12) -> tuple[HuggingFaceModel, MtpNetwork, Any]:
    target, network = parts("glm4_moe", size, layers=3)
    target.model.config.num_mtp_layers = 3
    theirs = MtpModel(target.model, 3).eval()
    names = {"enorm": "embedding_norm", "hnorm": "state_norm", "post_norm": "norm", "eh_proj": "fc"}
    for layer, own in zip(theirs.layers, [network, *network.further], strict=True):
        layer.mtp_block.load_state_dict(own.decoder.layers[0].state_dict())
        for part, name in names.items():
            layer.get_submodule(part).load_state_dict(own.get_submodule(name).state_dict())
    return target, network, theirs


class CheckedDeep(DeepMtpDrafter):
    """Compares each row of logits with the library's own network, that reads all at once."""

    target: Any
    theirs: Any
    compared = 0

    @torch.no_grad()
    def feed(self, tokens: Any, keep: Any) -> Any:
        output = super().feed(tokens, keep)
        for b, text in enumerate(self._tokens):
            if keep[b]:
                known = self.observed[b]
                states = self.target.get_decoder()(torch.tensor([text[:known]])).last_hidden_state
                for place in range(len(text) - known):
                    ids = torch.tensor([text[1 + place : known + 1 + place]])
                    positions = torch.arange(known)[None]
                    states = self.theirs.forward_layer(place, states, positions, None, ids)
                expected = self.target.lm_head(states[0, -1])
                torch.testing.assert_close(output.logits[b, 0], expected, rtol=1e-4, atol=1e-4)
                self.compared += 1
        return output


def test_each_place_is_drafted_by_its_own_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.slot_cache._PREFILL_COLUMNS", 3)
    target, network, theirs = deep()
    drafter = CheckedDeep(network)
    drafter.target, drafter.theirs = target.model, theirs
    assert isinstance(drafter, StateDrafter)
    decoder = SpeculativeDecoder(target, drafter, draft_length=3)
    statistics = decoder.generate(PROMPTS, max_new_tokens=12, seeds=[1, 2, 3]).statistics
    assert 0 < sum(statistics.accepted) < sum(statistics.drafted)
    assert drafter.compared > 30


def test_so_is_greedy_output_and_more_places_than_layers_are_refused() -> None:
    target, network, _ = deep()
    settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    alone = SpeculativeDecoder(target, draft_length=0).generate(PROMPTS, **settings).tokens
    for length in (1, 2, 3):
        decoder = SpeculativeDecoder(target, DeepMtpDrafter(network), draft_length=length)
        assert decoder.generate(PROMPTS, **settings).tokens == alone
    with pytest.raises(ValueError, match="draft_length is 4; needs at most 3, as many as DeepMtp"):
        SpeculativeDecoder(target, DeepMtpDrafter(network), draft_length=4)
    _, step = parts("step3p7", layers=2)
    with pytest.raises(ValueError, match="have heads of their own; needs layers that share one"):
        DeepMtpDrafter(step)


def deep_p_value() -> float:
    target, network, _ = deep(SIZE)
    decoder = SpeculativeDecoder(target, DeepMtpDrafter(network), draft_length=3, method="block")
    found = continuations(lambda: decoder, PROMPT, 3, 6_000)
    return chi_square(found, joint_of(target.model, PROMPT, 3))


@pytest.mark.night
def test_samples_of_all_layers_have_the_target_s_distribution() -> None:
    assert deep_p_value() > 1e-4


@pytest.mark.night
def test_control_all_layers_judged_by_another_q_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by_another_q(monkeypatch)
    assert deep_p_value() < 1e-6
