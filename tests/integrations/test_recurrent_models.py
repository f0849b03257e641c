"""Models with states or indexers decode what they do alone, however drafts are judged."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from test_huggingface import alone, assert_session_is_exact
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5.0")
# Releases before keep one state a layer, or a model's own cache; that they refuse is tested below.
pytest.importorskip("transformers", minversion="5.14")

from rdk_cuda.decoding import SpeculativeDecoder  # noqa: E402
from rdk_cuda.integrations.huggingface import (  # noqa: E402
    Generate,
    HuggingFaceModel,
    gated_mixers,
    row_cache,
    slot_cache,
)
from rdk_cuda.integrations.huggingface import model as huggingface  # noqa: E402
from rdk_cuda.integrations.huggingface.mixers import Pass  # noqa: E402
from rdk_cuda.integrations.huggingface.recurrent_cache import RecurrentCache  # noqa: E402
from rdk_cuda.integrations.huggingface.slot_layer import IndexedSlotLayer, SlotLayer  # noqa: E402
from tests import served_models  # noqa: E402
from tests.architectures import FROM_5_24, near, tiny  # noqa: E402
from tests.recurrent_models import (  # noqa: E402
    EACH,
    INDEXERS,
    NEW,
    PLACES,
    PROMPTS,
    READ_AGAIN,
    ROWS,
    STEPWISE,
    Spoilt,
    mostly_right,
    recurrent,
    truth,
)


@pytest.mark.parametrize("name", EACH)
def test_ragged_feeding_and_rollback_equal_fresh_forwards(name: str) -> None:
    """Also back to before the last rollback, and to nothing: such sequences are read anew."""
    model = recurrent(name)
    wrapped = HuggingFaceModel(model)
    without_states = INDEXERS.keys() - {"qwen4_exp_text"} | ROWS.keys()
    assert (wrapped._recurrent is None) == (name in without_states)
    assert (wrapped._cache.layers.by_slots is None) == (name not in ROWS)
    if wrapped._recurrent and FROM_5_24:  # others ignored states before
        assert wrapped._recurrent.stepwise == (name in STEPWISE)
        assert wrapped._recurrent.gated == (name not in STEPWISE)
    assert_session_is_exact(model, wrapped, seed=1)


@pytest.mark.parametrize(
    ("name", "trees"),
    [
        pytest.param(*each.values, trees, marks=pytest.mark.ci if trees and n else each.marks)
        for trees in (False, True)
        for n, each in enumerate(EACH)
    ],
)
def test_greedy_tokens_are_those_of_generate(
    name: str, trees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ragged prompts together and one alone, where 0 to all drafts are accepted."""
    target, expected = HuggingFaceModel(recurrent(name)), truth(name)
    if FROM_5_24 and name not in READ_AGAIN:
        monkeypatch.delattr(Pass, "_read")  # kernels alone run again
    decoder = SpeculativeDecoder(target, proposer=mostly_right(name, trees=trees))
    together = decoder.generate(PROMPTS, max_new_tokens=NEW, temperature=0.0)
    assert together.tokens == expected
    judged, accepted = together.statistics.drafted, together.statistics.accepted
    assert all(some < all_ for some, all_ in zip(accepted[:PLACES], judged, strict=False))
    assert accepted[PLACES - 1] > 0
    assert decoder.generate(PROMPTS[:1], max_new_tokens=NEW, temperature=0.0).tokens == expected[:1]


@pytest.mark.parametrize("name", EACH)
def test_generate_writes_the_same_with_a_recurrent_drafter(name: str) -> None:
    """In a padded batch; the drafter's states go back behind drafts that it made one by one."""
    model = recurrent(name)
    prompts = PROMPTS[:3:2]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(own)) + own for own in prompts])
    generate = Generate(near(model, 0.03), draft_length=3)
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    mask = (ids > 0).long()
    new = model.generate(ids, attention_mask=mask, custom_generate=generate, **options)
    assert new[:, width:].tolist() == truth(name)[:3:2]
    assert sum(generate.statistics.accepted) > 0


def not_rolled_back(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(RecurrentCache, "_go_to", lambda *_: None)


def window_off_by_one(patched: pytest.MonkeyPatch) -> None:
    replay = Pass.replay

    def shifted(one: Pass, *kept: Tensor) -> Any:
        layers = replay(one, *kept)
        for states in layers.values():
            states["conv_states", 0] = states["conv_states", 0].roll(1, -1)
        return layers

    patched.setattr(Pass, "replay", shifted)


def padding_in_front(patched: pytest.MonkeyPatch) -> None:
    lay_out = huggingface.lay_out
    patched.setattr(huggingface, "lay_out", lambda tokens, keep, in_front: lay_out(tokens, keep))


def places_not_cut(patched: pytest.MonkeyPatch) -> None:
    keep = IndexedSlotLayer.keep

    def keeping(layer: IndexedSlotLayer, count: int) -> None:
        places = layer.indexer_position_ids
        keep(layer, count)
        layer.indexer_position_ids = places

    patched.setattr(IndexedSlotLayer, "keep", keeping)


def indexer_keys_not_moved(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(IndexedSlotLayer, "close_gaps", SlotLayer.close_gaps)


@pytest.mark.parametrize("wrong", [places_not_cut, indexer_keys_not_moved])
def test_control_indexers_that_are_not_rolled_back_are_caught(
    wrong: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another text, or by an error in the model itself; short texts soon have gaps between."""
    target, expected = HuggingFaceModel(recurrent("qwen4_exp_text")), truth("qwen4_exp_text")[1]
    decoder = SpeculativeDecoder(target, proposer=Spoilt([PROMPTS[1] + expected] * 4))

    def tokens() -> list[list[int]]:
        return decoder.generate([PROMPTS[1]] * 4, max_new_tokens=NEW, temperature=0.0).tokens

    assert tokens() == [expected] * 4
    wrong(monkeypatch)
    with suppress(RuntimeError):
        assert tokens() != [expected] * 4


@pytest.mark.parametrize("wrong", [not_rolled_back, window_off_by_one, padding_in_front])
@pytest.mark.parametrize("name", ["nemotron_h", "lfm3"])
def test_control_states_that_are_wrong_are_caught(
    wrong: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At construction, unless only long prompts show it, and where the tokens are compared."""
    model, expected = recurrent(name), truth(name)
    wrong(monkeypatch)
    if wrong is not padding_in_front:
        with pytest.raises(ValueError, match=r"from its plain forward by .* tokens a pass"):
            HuggingFaceModel(model)
    monkeypatch.setattr(huggingface, "check", lambda *_: None)
    decoder = SpeculativeDecoder(HuggingFaceModel(model), proposer=mostly_right(name))
    assert decoder.generate(PROMPTS, max_new_tokens=NEW, temperature=0.0).tokens != expected


@pytest.mark.parametrize("name", ["llama4_text", "deepseek_v4", "inkling_text"])
def test_control_caches_that_are_not_copied_are_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At construction, and where the tokens are compared."""
    model, expected = recurrent(name), truth(name)
    target = HuggingFaceModel(model)
    monkeypatch.setattr(row_cache, "_copied", lambda cache: cache)
    decoder = SpeculativeDecoder(target, proposer=mostly_right(name))
    assert decoder.generate(PROMPTS, max_new_tokens=NEW, temperature=0.0).tokens != expected
    with pytest.raises(ValueError, match=r"from its plain forward by .* tokens a pass"):
        HuggingFaceModel(model)


@pytest.mark.parametrize("name", ["llama4_text", "deepseek_v4"])
def test_hidden_states_of_passes_one_after_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a sequence that is read again in pieces, to another place than it was before."""
    monkeypatch.setattr(slot_cache, "_PREFILL_COLUMNS", 3)
    model = recurrent(name)
    wrapped = HuggingFaceModel(model, return_hidden=True, state_layers=(1,))
    wrapped.reset(2)
    wrapped.feed([PROMPTS[2], PROMPTS[0]], [1, 1])
    wrapped.rollback([11, 7])
    output = wrapped.feed([[5, 6, 7], [8]], [2, 1])
    for b, text in enumerate(([*PROMPTS[2][:11], 5, 6, 7], [*PROMPTS[0], 8])):
        kept, new = (2, 1)[b], (3, 1)[b]
        torch.testing.assert_close(output.logits[b, :kept], alone(model, text)[-kept:])
        with torch.no_grad():
            plain = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
        torch.testing.assert_close(output.states[b], plain.hidden_states[1][0, -new:])


def test_batches_of_one_pass_a_sequence_are_announced_once() -> None:
    target = HuggingFaceModel(recurrent("llama4_text"))
    with pytest.warns(UserWarning, match="has layers of type chunked_attention, so that each"):
        target.reset(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target.reset(3)
    with pytest.raises(TypeError, match="chunked_attention; needs recent=None"):
        HuggingFaceModel(target.model, recent=4)


@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h"])
def test_kernels_in_which_rejected_tokens_leave_a_trace_are_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that keep equally many tokens are read again together instead, and exactly."""
    monkeypatch.setattr(gated_mixers, "_zeroed", lambda values, kept: values)
    model = recurrent(name)
    wrapped = HuggingFaceModel(model)
    assert not wrapped._recurrent.gated
    assert not wrapped._recurrent.stepwise
    assert_session_is_exact(model, wrapped, seed=3)


@pytest.mark.parametrize("groups", [1, 4])
def test_states_made_without_outputs_are_those_of_the_kernel(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sequences that keep nothing, some and all tokens of passes, one after the other."""
    wrapped = HuggingFaceModel(recurrent("mamba2", n_groups=groups))
    cache = wrapped._recurrent
    original, made = gated_mixers._Scan.go_on, list[bool]()

    def go_on(*given: Any) -> bool:
        made.append(original(*given))
        return made[-1]

    def states(function: Callable[..., bool]) -> list[Tensor]:
        monkeypatch.setattr(gated_mixers._Scan, "go_on", function)
        wrapped.reset(4)
        wrapped.feed(PROMPTS, [1] * 4)
        wrapped.rollback(wrapped.lengths)
        for kept in ([1, 2, 5, 0], [3, 4, 1, 2]):
            lengths = [old + new for old, new in zip(wrapped.lengths, kept, strict=True)]
            wrapped.feed([[5, 6, 7, 8, 9]] * 4, [5] * 4)
            wrapped.rollback(lengths)
        return [state.clone() for state in cache.states()]

    torch.testing.assert_close(states(go_on), states(lambda *_: False), rtol=1e-5, atol=1e-6)
    assert any(made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixers_that_ignore_a_state_read_one_token_at_a_time(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision the model's own noise hides it, but for a look at single mixers."""
    several, single = (HuggingFaceModel(recurrent(name).to(dtype)) for name in ("lfm3", "jamba"))
    assert not several._recurrent.stepwise
    assert single._recurrent.stepwise
    monkeypatch.setattr(Pass, "error_behind_states", lambda _: 0.0)
    single = HuggingFaceModel(recurrent("jamba").to(dtype))
    assert single._recurrent.stepwise == (dtype == torch.float32)


@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h", "lfm3", "llama4_text", "llama"])
def test_half_precision_is_as_exact_as_attention_is(name: str) -> None:
    """Logits of passes with rollbacks, against those of the plain forward over the same tokens."""
    model = (tiny(name) if name == "llama" else recurrent(name)).bfloat16()
    wrapped, text = HuggingFaceModel(model), PROMPTS[2]
    wrapped.reset(2)
    wrapped.feed([text[:5], text[:9]], [1, 1])
    rows: list[list[Tensor]] = [[], []]
    lengths = [5, 9]
    while max(lengths) + 5 < len(text):
        drafts = [[*text[n : n + 3], 1, 2] for n in lengths]
        logits = wrapped.feed(drafts, [5, 5]).logits
        kept = [1 + lengths[0] % 3, 3]
        for row, own, count in zip(rows, logits, kept, strict=True):
            row.append(own[:count])
        lengths = [n + count for n, count in zip(lengths, kept, strict=True)]
        wrapped.rollback(lengths)
    for row, first, last in zip(rows, (5, 9), lengths, strict=True):
        found, expected = torch.cat(row).float(), alone(model, text[:last])[first:].float()
        assert float((found - expected).norm() / expected.norm()) < 0.03
        assert float((found.argmax(1) == expected.argmax(1)).float().mean()) > 0.75


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("minimax", "not run over the library's cache"),
        ("recurrent_gemma", r"layers \[0, 1\] where"),
        ("xlstm", "does not take .* position_ids"),
        ("rwkv", "does not take .* position_ids"),
        ("unlimited_ocr", "reference_sliding.*, whose window begins where its first pass ends"),
        ("bloom", "does not take position_ids"),
    ],
)
def test_models_with_pasts_elsewhere_are_refused(name: str, reason: str) -> None:
    """For their reason, or in older releases because they are wrong behind a rollback."""
    reason = reason if FROM_5_24 else "from its plain forward|" + reason
    with pytest.raises((TypeError, ValueError), match=f"HuggingFaceModel: .*({reason})"):
        HuggingFaceModel(recurrent(name))


def test_the_table_of_served_models_is_what_the_code_does() -> None:
    """Of a few types; `python -m tests.served_models` writes all."""
    written = json.loads(served_models.RESULT.read_text("utf-8"))
    if written["transformers"] != transformers.__version__:
        pytest.skip(f"the table is of Transformers {written['transformers']}")
    named = {"llama", "mistral", "jamba", "lfm3", "qwen4_exp_text", "llama4_text", "minimax"}
    for name, model in served_models.models(named):
        row = served_models.row_of(name, model)
        assert row.pop("error", 0.0) < 1e-5
        assert row in [
            {key: own for key, own in each.items() if key != "error"} for each in written["rows"]
        ]
        named.remove(name)
    assert not named


def test_releases_without_states_in_the_cache_refuse_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.attention._RECURRENT", set())
    with pytest.raises(TypeError, match="keeps its past as LinearAttentionLayer and conv; needs"):
        HuggingFaceModel(recurrent("lfm3"))


def test_trees_below_earlier_nodes_are_refused() -> None:
    wrapped = HuggingFaceModel(recurrent("lfm3"))
    wrapped.reset(1)
    wrapped.feed_tree([[1, 2]], [2], [[-1]])
    with pytest.raises(ValueError, match=r"a tree by its paths, and \[1\] nodes are read; needs"):
        wrapped.feed_tree([[3]], [1], [[-1, 0]])
