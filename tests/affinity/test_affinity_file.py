"""Affinity files: bit-exact there and back, and refused whole when anything is wrong."""

import math
import pickle

import pytest
import safetensors
import safetensors.torch
import torch

from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.affinity.fixed_point import ONE
from rdk_cuda.vocabulary import Vocabulary

from .test_samplers import same

CANONICAL = ("bias", "row_offsets", "row_targets", "row_cdf", "spread_cdf", "prior_cdf")


def _affinity():
    """Three rows (two entries and spread; masked; entries only), four targets, two priors."""
    return Affinity.from_rows(
        [{0: 1.0, 3: 2.0}, {}, {1: 1.0, 2: 1.0}],
        spread=torch.tensor([[1.0, 0.5], [0.0, 0.0], [0.0, 0.0]]),
        prior=torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 1.0]]),
        bias=torch.tensor([0.1, 0.0, -3.0]),
    )


def _content(affinity):
    tensors = {name: getattr(affinity, name).clone() for name in CANONICAL}
    metadata = {
        "format": "rdk_cuda.affinity",
        "format_version": "1",
        "draft_size": str(affinity.draft_size),
        "target_size": str(affinity.target_size),
    }
    return tensors, metadata


def test_one_affinity_makes_one_file_to_the_bit(tmp_path):
    """safetensors alone would write the metadata in another order each time."""
    for number in range(8):
        _affinity().save(tmp_path / str(number))
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize(
    "build",
    [
        _affinity,
        lambda: Affinity.intersection(Vocabulary([2, -1, 0], target_size=5)),
        lambda: Affinity.intersection(Vocabulary([-1], target_size=1)),
        lambda: Affinity.first_order(Vocabulary([1, -1], 9), torch.rand(9), 1e-3),
    ],
)
def test_a_file_gives_back_the_same_affinity_to_the_bit(build, tmp_path):
    affinity = build()
    affinity.save(tmp_path / "affinity.safetensors")
    assert same(Affinity.load(tmp_path / "affinity.safetensors"), affinity)


def test_a_file_holds_the_canonical_tensors_and_the_sizes_only(tmp_path):
    """So one written by hand in this form is read."""
    tensors, metadata = _content(_affinity())
    _affinity().save(tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        assert set(file.keys()) == set(CANONICAL)
        assert file.metadata() == metadata
    safetensors.torch.save_file(tensors, tmp_path / "b", metadata)
    assert same(Affinity.load(tmp_path / "b"), _affinity())
    assert Affinity.load(str(tmp_path / "b"), device="meta").device.type == "meta"
    with pytest.raises(FileNotFoundError):
        Affinity.load(tmp_path / "nowhere")


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    path = tmp_path / "a"
    _affinity().save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(AffinityError, match=r"a is not a complete safetensors file"):
            Affinity.load(path)


def test_foreign_files_are_refused_and_pickles_never_run(tmp_path):
    path = tmp_path / "a"

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    for content in (pickle.dumps(Trap()), bytes(range(256)) * 8, b"PK\x03\x04" + b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(AffinityError, match=f"{path.name} is not a complete safetensors file"):
            Affinity.load(path)
    for metadata, found in ((None, "None"), ({"format": "pt"}, "'pt'")):
        safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata)
        with pytest.raises(AffinityError, match=f"safetensors file of format {found}"):
            Affinity.load(path)


def _set(name, place, value):
    return lambda tensors, _: tensors[name].__setitem__(place, value)


def _replace(name, function):
    return lambda tensors, _: tensors.update({name: function(tensors[name]).contiguous()})


def _say(name, value):
    return lambda _, metadata: metadata.update({name: value})


def _drop(name):
    return lambda tensors, metadata: (tensors if name in tensors else metadata).pop(name)


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (_say("format_version", "2"), "format version '2'; this rdk_cuda reads version 1"),
        (_drop("format_version"), "format version None"),
        *[(_drop(name), rf"lacks \['{name}'\]") for name in CANONICAL],
        (_replace("bias", lambda t: t), None),  # untouched: the control
        (lambda tensors, _: tensors.update(extra=torch.ones(1)), r"unknown \['extra'\]"),
        *[
            (_replace(name, lambda t: t.to(torch.float64)), f"{name} has dtype torch.float64")
            for name in CANONICAL
        ],
        (_replace("row_targets", lambda t: t.long()), "row_targets has dtype torch.int64"),
        (_replace("bias", lambda t: t[None]), r"bias has shape \[1, 3\]"),
        (_replace("row_offsets", lambda t: t[:-1]), r"row_offsets has shape \[3\]; needs \[4\]"),
        (_replace("row_targets", lambda t: t[None]), r"row_targets has shape \[1, 4\]"),
        (_replace("row_cdf", lambda t: t[:-1]), r"row_cdf has shape \[3\]; needs \[4\]"),
        (_replace("spread_cdf", lambda t: t[:, :1]), r"spread_cdf has shape \[3, 1\]"),
        (_replace("spread_cdf", lambda t: t.T), r"spread_cdf has shape \[2, 3\]"),
        (_replace("prior_cdf", lambda t: t[0]), r"prior_cdf has shape \[4\]"),
        (_replace("prior_cdf", lambda t: t[:1]), r"spread_cdf has shape \[3, 2\]; needs \[3, 1\]"),
        (_replace("prior_cdf", lambda t: t.repeat(3, 1)), "R <= 4"),
        (_set("bias", 0, math.nan), r"bias\[0\] is nan"),
        (_set("bias", 2, math.inf), r"bias\[2\] is inf"),
        (_set("bias", 0, -math.inf), r"sum of row\[0\] is 4294967296"),
        (_set("bias", 1, 0.0), r"sum of row\[1\] is 0"),
        (_set("row_offsets", 0, 1), r"row_offsets\[0\] is 1"),
        (_set("row_offsets", 0, -1), r"row_offsets\[0\] is -1"),
        (_set("row_offsets", 1, 5), r"row_offsets\[2\] is 2; needs it to start at 0 and never"),
        (_set("row_offsets", 3, 3), r"row_offsets\[-1\] is 3; needs 4"),
        (_set("row_offsets", 3, 2**30), r"row_offsets\[-1\] is 1073741824"),
        (_set("row_offsets", slice(1, 3), 3), r"row_targets\[2\] is 1; needs ids that ascend"),
        (_set("row_targets", 0, -1), r"row_targets\[0\] is -1; needs a target id in \[0, 4\)"),
        (_set("row_targets", 3, 4), r"row_targets\[3\] is 4"),
        (_set("row_targets", 3, 1), r"row_targets\[3\] is 1; needs ids that ascend strictly"),
        (_set("row_targets", 3, 0), r"row_targets\[3\] is 0; needs ids that ascend strictly"),
        (_set("spread_cdf", 2, ONE - 1), r"spread_cdf\[2, 0\] is 4294967295; needs never to fall"),
        (_set("row_cdf", 3, ONE + 1), r"row_cdf\[3\] is 4294967297"),
        (_set("row_cdf", 0, 0), r"row_cdf\[0\] is 0; needs to rise strictly"),
        (_set("row_cdf", 2, ONE), r"row_cdf\[3\] is 4294967296; needs to rise strictly"),
        (_set("row_cdf", 0, -(2**63)), r"row_cdf\[0\] is -9223372036854775808; needs a running"),
        (_set("spread_cdf", (0, 1), ONE - 1), r"sum of row\[0\] is 4294967295"),
        (_set("spread_cdf", (0, 0), 7), r"spread_cdf\[0, 0\] is 7; needs never to fall"),
        (_set("spread_cdf", (1, 1), 1), r"sum of row\[1\] is 1; .* 0 where bias is -inf"),
        (_set("spread_cdf", (2, 0), 2**62), r"spread_cdf\[2, 0\] is"),
        (_set("prior_cdf", (0, 3), ONE - 1), r"end of prior_cdf\[0\] is 4294967295"),
        (_set("prior_cdf", (1, 0), -1), r"prior_cdf\[1, 0\] is -1"),
        (_set("prior_cdf", (0, 1), 5), r"prior_cdf\[0, 1\] is 5; needs never to fall"),
    ],
)
def test_a_tampered_file_is_refused_by_field(tamper, message, tmp_path):
    path = tmp_path / "tampered"
    tensors, metadata = _content(_affinity())
    tamper(tensors, metadata)
    safetensors.torch.save_file(tensors, path, metadata)
    if message is None:
        assert same(Affinity.load(path), _affinity())
        return
    with pytest.raises(AffinityError, match=message) as refused:
        Affinity.load(path)
    assert str(path) in str(refused.value)


def test_the_constructor_refuses_what_a_file_must_not_hold():
    tensors, _ = _content(_affinity())
    with pytest.raises(AffinityError, match=r"row_cdf\[0\] is 0"):
        Affinity(**{**tensors, "row_cdf": tensors["row_cdf"].index_fill(0, torch.tensor(0), 0)})
    with pytest.raises(AffinityError, match="0 < V_t"):
        Affinity(**{**tensors, "prior_cdf": tensors["prior_cdf"][:, :0]})
    with pytest.raises(AffinityError, match="row_cdf is list; needs a tensor"):
        Affinity(**{**tensors, "row_cdf": tensors["row_cdf"].tolist()})
    tensors, _ = _content(Affinity.from_rows([{0: 1.0, 1: 1.0}], target_size=2))  # no priors
    tensors["row_cdf"][1] -= 1
    with pytest.raises(AffinityError, match=r"sum of row\[0\] is 4294967295; needs exactly 2\^32"):
        Affinity(**tensors)


def test_any_flipped_bit_gives_a_valid_affinity_or_an_affinity_error(tmp_path):
    path = tmp_path / "a"
    _affinity().save(path)
    content = bytearray(path.read_bytes())
    outcomes = set()
    for place in range(0, len(content), 2):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 7)
        path.write_bytes(flipped)
        try:
            loaded = Affinity.load(path)
        except AffinityError:
            outcomes.add("refused")
        else:
            outcomes.add("valid")
            torch.testing.assert_close(
                loaded.dense().sum(1), (~loaded.bias.isinf()).double(), rtol=0, atol=1e-14
            )
    assert outcomes == {"refused", "valid"}  # a bias, or two masses that moved together


def test_a_short_file_cannot_ask_for_any_amount_of_memory(tmp_path):
    """Without priors V_t is a number in the header, and what is derived from it has its size."""
    path = tmp_path / "a"
    Affinity.intersection(Vocabulary([0], target_size=1 << 25)).save(path)
    assert path.stat().st_size < 1000
    with pytest.raises(AffinityError, match="V_t is 33554432; needs at most"):
        Affinity.load(path)


def test_without_priors_a_file_with_another_v_t_than_it_says_is_refused(tmp_path):
    """Nothing else in it is as wide as the target's vocabulary."""
    tensors, metadata = _content(Affinity.intersection(Vocabulary([0, 1], target_size=5)))
    for cut in (tensors["prior_cdf"][:, :4].contiguous(), torch.zeros(0, 6, dtype=torch.int64)):
        safetensors.torch.save_file({**tensors, "prior_cdf": cut}, tmp_path / "a", metadata)
        with pytest.raises(AffinityError, match=r"says target_size = 5, and its tensors have [46]"):
            Affinity.load(tmp_path / "a")
