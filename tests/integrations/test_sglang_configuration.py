"""Which options the plugin for SGLang serves and refuses, from the entry point on."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rdk_cuda.integrations import engine_version
from rdk_cuda.integrations.engine_version import UnknownEngineError
from rdk_cuda.integrations.sglang import plugin
from rdk_cuda.integrations.sglang.drafting import DraftWorker
from rdk_cuda.integrations.sglang.server_options import (
    ALGORITHMS,
    UnsupportedConfigurationError,
    calibrated_directory,
    is_asked_for,
    refuse_unsupported,
)

from .fake_sglang import STEPS, WIDTH, Model
from .test_sglang_plugin import EMBEDDING, HEAD, ROWS, TOKENS, greedy_text, pruned, said, sampling


def options(**changes: Any) -> SimpleNamespace:
    """SGLang's, with which the plugin serves."""
    given: dict[str, Any] = {
        "speculative_token_map": None,
        "speculative_draft_model_path": None,
        "speculative_algorithm": "STANDALONE",
        "speculative_eagle_topk": 1,
        "speculative_adaptive": False,
        "speculative_use_rejection_sampling": False,
        "enable_multi_layer_eagle": False,
        "speculative_use_block_verification": False,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "disaggregation_mode": "null",
        "enable_watermark": False,
        **{name: 1 for name in ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size")},
    }
    return SimpleNamespace(**given | changes)


def test_it_is_asked_for_by_a_directory(tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (tmp_path / "map.pt").touch()
    for other in (None, str(tmp_path / "map.pt"), "someone/model/map.pt"):
        assert not is_asked_for(options(speculative_token_map=other))
    for named, directory in ((str(tmp_path), tmp_path), (f"{tmp_path}/./drafter", None)):
        paths = {"speculative_draft_model_path": str(drafter), "speculative_token_map": named}
        assert is_asked_for(options(**paths))
        assert calibrated_directory(options(**paths)) == directory


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("speculative_algorithm", "NGRAM", "'NGRAM'; needs one of STANDALONE, EAGLE3, EAGLE"),
        ("speculative_algorithm", None, "needs one of STANDALONE, EAGLE3"),
        ("speculative_eagle_topk", 4, "--speculative-eagle-topk is 4, a tree"),
        ("speculative_adaptive", True, "--speculative-adaptive"),
        ("enable_multi_layer_eagle", True, "--enable-multi-layer-eagle"),
        ("speculative_accept_threshold_acc", 0.9, "--speculative-accept-threshold-acc is 0.9"),
        ("speculative_accept_threshold_single", 0.5, "not the target's; needs 1.0"),
        ("tp_size", 2, "tp_size is 2"),
        ("pp_size", 2, "pp_size is 2"),
        ("dp_size", 2, "dp_size is 2"),
        ("attn_dp_size", 2, "attn_dp_size is 2"),
        ("attn_cp_size", 2, "attn_cp_size is 2"),
        ("disaggregation_mode", "decode", "--disaggregation-mode is 'decode'"),
        ("enable_watermark", True, "--enable-watermark"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=said) as refused:
        refuse_unsupported(options(**{name: value}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"), [("SGLANG_SIMULATE_ACC_LEN", "3.2"), ("SGLANG_ENABLE_ASYNC_ASSERT", "1")]
)
def test_what_the_environment_asks_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for algorithm in ALGORITHMS:
        refuse_unsupported(options(speculative_algorithm=algorithm))
    monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedConfigurationError, match=name):
        refuse_unsupported(options())


# From the entry point on.


@pytest.fixture
def registered(sglang: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """SGLang after it has loaded plugins, of a version that is known; `tmp_path` as `DIR`."""
    monkeypatch.setattr(engine_version, "_version_of", lambda name: "0.5.23")
    (tmp_path / "drafter").mkdir()
    pruned().save(tmp_path / "pruned_drafter.safetensors")
    settings = '{"format": "rdk_cuda.drafter", "format_version": "1", "settings": {}}'
    (tmp_path / "calibration.json").write_text(settings)
    plugin.register()
    sglang.HookRegistry.apply_hooks()
    return sglang


def settled(sglang: Any, server_args: SimpleNamespace) -> SimpleNamespace:
    seen: list[Any] = []
    sglang.resolution_hooks["handle_speculative_decoding"](server_args, seen.append)
    assert seen == [server_args]
    return server_args


def test_the_entry_point_is_found(tmp_path: Path) -> None:
    """In the metadata that an installation makes of this source."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    (own,) = distributions(path=[str(tmp_path)])
    (found,) = own.entry_points.select(group="sglang.srt.plugins")
    assert found.name == "rdk_cuda"
    assert found.load() is plugin.register


def test_make_downloads_the_wheels_of_versions_that_are_known() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"^SGLANG_VERSION := (.+)$", makefile, re.MULTILINE) == list(plugin.TESTED)


def test_it_does_nothing_unless_asked(registered: Any) -> None:
    own = registered.sample_draft_proposal
    given = options(speculative_eagle_topk=4, tp_size=8)
    assert not settled(registered, given).speculative_use_rejection_sampling
    assert registered.SpeculativeAlgorithm().create_worker(given) == "STANDALONE"
    assert registered.sample_draft_proposal is own


def test_asked_for_it_serves(registered: Any, tmp_path: Path) -> None:
    given = settled(registered, options(speculative_token_map=str(tmp_path)))
    assert given.speculative_use_rejection_sampling
    assert registered.SpeculativeAlgorithm().create_worker(given) == "STANDALONE"
    worker = registered.StandaloneDraftWorker(Model(EMBEDDING, HEAD))
    worker.alloc_memory_pool(SimpleNamespace(req_to_token=torch.zeros(9, 8)))
    tokens, _ = said(registered, worker, sampling(6, top_k=1))
    assert [row[:TOKENS] for row in tokens] == [greedy_text(TOKENS)] * 6
    assert worker.draft_runner.model.lm_head.weight.shape == (len(ROWS), WIDTH)
    assert worker.speculative_num_steps == STEPS


def test_options_that_were_settled_without_it_are_refused(registered: Any, tmp_path: Path) -> None:
    """SGLang would then draw drafts by functions that are not wrapped."""
    given = options(speculative_token_map=str(tmp_path))
    create_worker = registered.SpeculativeAlgorithm().create_worker
    with pytest.raises(UnsupportedConfigurationError, match="before it loaded the plugin"):
        create_worker(given)
    given = settled(registered, given)
    given.speculative_adaptive = True
    with pytest.raises(UnsupportedConfigurationError, match="--speculative-adaptive"):
        create_worker(given)


def test_without_a_hook_where_workers_are_made_it_is_refused(
    registered: Any, tmp_path: Path
) -> None:
    registered.HookRegistry._patched.clear()
    with pytest.raises(UnknownEngineError, match=r"could not apply hooks to .*create_worker"):
        settled(registered, options(speculative_token_map=str(tmp_path)))


@pytest.mark.parametrize(("by_block", "method"), [(True, "block"), (False, "token")])
def test_sglangs_option_says_how_it_verifies(
    registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_block: bool, method: str
) -> None:
    workers: list[DraftWorker] = []
    monkeypatch.setattr(plugin, "_install", workers.append)
    given = options(
        speculative_token_map=str(tmp_path), speculative_use_block_verification=by_block
    )
    registered.SpeculativeAlgorithm().create_worker(settled(registered, given))
    assert [worker.method for worker in workers] == [method]


def test_an_unknown_version_is_refused_where_sglang_stops(
    registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_version, "_version_of", lambda name: "0.5.99")
    given = options(speculative_token_map=str(tmp_path))
    refusal = r"tested with SGLang 0\.5\.23; installed is 0\.5\.99.* RDK_ANY_ENGINE_VERSION=1"
    with pytest.raises(UnknownEngineError, match=refusal):
        settled(registered, given)
    with pytest.raises(UnknownEngineError, match=refusal):
        registered.SpeculativeAlgorithm().create_worker(given)
    settled(registered, options())  # not asked for: nothing is refused
    monkeypatch.setenv("RDK_ANY_ENGINE_VERSION", "1")
    settled(registered, given)


def test_another_directory_is_refused(registered: Any, tmp_path: Path) -> None:
    given = options(speculative_token_map=str(tmp_path))
    (tmp_path / "calibration.json").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"has no calibration\.json"):
        settled(registered, given)
    (tmp_path / "affinity.safetensors").touch()
    with pytest.raises(UnsupportedConfigurationError, match="has another tokenizer; serve it with"):
        settled(registered, given)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"dynamic_tokens": object()}, "dynamic tokens.*--dynamic 0"),
        ({"bias": torch.zeros(3)}, "has a bias"),
    ],
)
def test_dynamic_tokens_and_biases_are_refused(
    registered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Any, said: str
) -> None:
    drafter = SimpleNamespace(**{"dynamic_tokens": None, "bias": None} | part)
    monkeypatch.setattr(plugin, "load_pruned", lambda *_: (drafter, {}))
    with pytest.raises(UnsupportedConfigurationError, match=said):
        settled(registered, options(speculative_token_map=str(tmp_path)))
