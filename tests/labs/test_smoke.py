"""One test of each system in labs, for `make test`; the others run at night."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import (
    test_cascades,
    test_deep_heads,
    test_length_rules,
    test_parallel,
    test_sglang_trees,
    test_steering,
    test_string_rejection,
    test_tuned_rdk,
)


def test_the_parallel_decoder_s_pieces_are_one_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    test_parallel.test_pieces_are_one_verify_to_the_bit(2, 7, monkeypatch)


def test_a_cascade_s_greedy_text_is_the_target_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    name, every = "dynamic tokens", test_cascades.test_every_proposer
    monkeypatch.setitem(every.PROPOSERS, name, test_cascades.CASCADES[name])
    every.test_at_temperature_0_the_text_is_the_target_s_own(name, "token")
    every.test_every_proposer_is_lossless_under_every_rule(name, "token", "as it is", 2_000)


@pytest.mark.parametrize("name", test_length_rules.RULES)
def test_a_length_rule_changes_nothing_but_how_much_is_drafted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_length_rules.check(name, 2_000, monkeypatch)


def test_a_drafter_s_own_confidence_ends_drafts(tmp_path: Path) -> None:
    test_length_rules.test_a_drafter_s_own_confidence_ends_drafts(tmp_path)


def test_string_level_rejection_is_lossless() -> None:
    test_string_rejection.test_string_level_rejection_is_lossless(1.0, "token")


def test_a_steered_drafter_is_read_by_labs_alone(tmp_path: Path) -> None:
    loaded = "test_a_saved_drafter_is_steered_when_labs_load_it_and_refused_by_the_core"
    getattr(test_steering, loaded)(tmp_path)


def test_tau_of_rdk_is_tuned_on_a_recording() -> None:
    test_tuned_rdk.test_a_method_of_a_pruning_says_how_it_was_tuned(test_tuned_rdk.COVARIANCE)


def test_sglang_s_links_are_parents() -> None:
    test_sglang_trees.test_parents_of_first_children_and_next_siblings()


def test_each_place_is_drafted_by_its_own_layer_of_a_deep_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test_deep_heads.test_each_place_is_drafted_by_its_own_layer(monkeypatch)
