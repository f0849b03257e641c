"""The hooks are in SGLang's published wheel, and its own drafting calls them as the stand-in does.

SGLang itself is not imported: it needs a GPU. Its sources are read from the wheel, which
`make test-sglang` downloads. Three of its methods are compiled out of them, into the stand-in.
"""

from __future__ import annotations

import ast
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rdk_cuda.integrations import engine_version
from rdk_cuda.integrations.sglang import plugin
from rdk_cuda.integrations.sglang.drafting import DraftWorker
from tests.integrations import fake_sglang
from tests.integrations import test_sglang_plugin as stand_in
from tests.integrations.test_sglang_configuration import options

from .engine_hooks import SGLANG
from .engine_sources import differences
from .wheel import Sources, downloaded

WHEELS = {version: downloaded("sglang", version) for version in plugin.TESTED}
MISSING = [version for version, wheel in WHEELS.items() if wheel is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no wheel of SGLang {', '.join(MISSING)} in .sglang: make test-sglang"
)


@pytest.fixture(scope="module", params=plugin.TESTED)
def source(request: pytest.FixtureRequest) -> Sources:
    wheel = WHEELS[request.param]
    assert wheel is not None
    return Sources(wheel)


def test_the_published_wheel_has_every_hook(source: Sources) -> None:
    assert differences(SGLANG, source) == []


LOADING = ("alloc_memory_pool", "init_token_map", "init_lm_head")
METHODS = ("draft_forward", "_draft_extend_for_prefill", "_draft_extend_for_decode")
FUNCTIONS = {
    "spec_utils": (
        "select_top_k_tokens",
        "_select_top_k_tokens_first",
        "_select_top_k_tokens_later",
    ),
    "eagle_utils": ("per_step_draft_out_cache_loc", "_eagle_prefill_tail_tokens"),
}


@pytest.fixture
def published(source: Sources, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in with SGLang's own drafting, and SGLang's own registry of hooks."""
    engine = fake_sglang.installed(monkeypatch)
    vars(engine).update(
        _is_cuda=False,
        _is_hip=False,
        _is_npu=False,
        CaptureHiddenMode=SimpleNamespace(NULL=0, LAST=1),
        ForwardContext=lambda **options: None,
        IndexTopKShareState=SimpleNamespace(mtp_iteration=_nothing),
        context_tuple=_nothing,
        contextlib=SimpleNamespace(nullcontext=nullcontext),
        fast_topk=lambda probs, topk, dim: probs.topk(topk, dim=dim),
        forward_context=_nothing,
        maybe_detect_inf=_nothing,
        maybe_detect_nan=_nothing,
        maybe_detect_oob=_nothing,
        prepare_for_draft_extend=_prepared,
    )
    for module, names in FUNCTIONS.items():
        _compiled(engine, source(f"sglang.srt.speculative.{module}"), names, vars(engine))
    _give_methods(engine, source, METHODS)
    name = "sglang.srt.plugins.hook_registry"
    registry = type(sys)(name)
    exec(compile(str(source(name)), name, "exec"), vars(registry))
    monkeypatch.setattr(engine, "HookRegistry", registry.HookRegistry)
    monkeypatch.setitem(sys.modules, name, registry)
    return engine


def _give_methods(engine: Any, source: Sources, names: tuple[str, ...]) -> None:
    own: dict[str, Any] = {}
    text = source("sglang.srt.speculative.eagle_worker_v2")
    _compiled(engine, text, names, own, "EagleDraftWorker")
    for name in names:
        setattr(engine.EagleDraftWorker, name, own[name])


def _nothing(*arguments: Any, **options: Any) -> Any:
    return nullcontext()


def _prepared(
    extend_input: Any, batch: Any, tokens: torch.Tensor, *arguments: Any, **options: Any
) -> Any:
    """Of `prepare_for_draft_extend`: every token that verification returned is read."""
    return fake_sglang.Batch(**vars(batch) | {"input_ids": tokens})


def _compiled(
    engine: Any, text: str | None, names: tuple[str, ...], into: dict[str, Any], owner: str = ""
) -> None:
    """Functions of a source, with the stand-in's names around them, and without decorators."""
    assert text is not None
    body = ast.parse(text).body
    if owner:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == owner).body
    found = [n for n in body if isinstance(n, ast.FunctionDef) and n.name in names]
    assert {node.name for node in found} == set(names)
    for node in found:
        node.decorator_list = []
        node.returns = None
        for given in [*node.args.args, *node.args.kwonlyargs]:
            given.annotation = None
    exec(compile(ast.Module(found, []), "<sglang>", "exec"), vars(engine), into)


def test_sglangs_own_drafting_draws_what_the_stand_ins_does(
    published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what the stand-in is tested for holds for the published methods, too."""
    info = {"seeded": True, "temperature": 0.9}

    def text_of(engine: Any) -> tuple[list[list[int]], int]:
        worker = stand_in.worker_of(engine, DraftWorker(stand_in.pruned()))
        return stand_in.said(engine, worker, stand_in.sampling(300, **info))

    text, accepted = text_of(published)
    assert text_of(fake_sglang.installed(monkeypatch)) == (text, accepted)
    assert accepted > 100


@pytest.mark.parametrize("asked", [True, False])
def test_sglangs_own_settling_of_options_runs_the_plugins_step(
    source: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: bool
) -> None:
    engine = fake_sglang.installed(monkeypatch)
    name = "sglang.srt.arg_groups.resolution_hooks"
    steps = type(sys)(name)
    exec(compile(str(source(name)), name, "exec"), vars(steps))
    monkeypatch.setitem(sys.modules, name, steps)
    monkeypatch.setattr(engine_version, "_version_of", lambda name: "0.5.23")
    plugin.register()
    engine.HookRegistry.apply_hooks()
    seen = []

    def handle_speculative_decoding(server_args: Any) -> None:
        seen.append(server_args)

    paths = {"speculative_token_map": str(tmp_path), "speculative_draft_model_path": str(tmp_path)}
    given = options(**paths if asked else {})
    steps.run_hook(handle_speculative_decoding, given)
    assert seen == [given]
    assert given.speculative_use_rejection_sampling == asked


@pytest.mark.parametrize("plugin_is_there", [True, False])
def test_sglang_takes_a_reduced_vocabulary_with_the_plugin_and_not_without(
    source: Sources, published: Any, monkeypatch: pytest.MonkeyPatch, plugin_is_there: bool
) -> None:
    """Its own loading of an EAGLE-3 drafter, which ends with the refusal of such a vocabulary."""
    _give_methods(published, source, LOADING)
    lora = type(sys)("sglang.srt.lora.layers")
    vars(lora).update(unwrap_lora_layer=lambda layer: layer)
    monkeypatch.setitem(sys.modules, lora.__name__, lora)
    vars(published).update(logger=SimpleNamespace(warning=_nothing))
    hot = torch.tensor([4, 0, 3])
    model = fake_sglang.Model(stand_in.EMBEDDING, stand_in.HEAD[hot], hot)
    model.load_lm_head_from_target, model.set_embed = False, _nothing
    worker = published.EagleDraftWorker(model)
    worker.draft_worker = SimpleNamespace(alloc_memory_pool=_nothing)
    worker.target_worker.model_runner = SimpleNamespace(model=None)
    worker._resolve_shared_embed_and_head = lambda: (stand_in.EMBEDDING, None)
    worker.speculative_algorithm = SimpleNamespace(
        is_eagle3=lambda: True, is_standalone=lambda: False
    )
    pool = SimpleNamespace(req_to_token=torch.zeros(9, 8))
    if not plugin_is_there:
        with pytest.raises(ValueError, match="share one vocab"):
            worker.alloc_memory_pool(req_to_token_pool=pool)
        return
    plugin._install(DraftWorker(None))
    worker.alloc_memory_pool(req_to_token_pool=pool)
    tokens, _ = stand_in.said(published, worker, stand_in.sampling(6, top_k=1))
    text = stand_in.greedy_text(stand_in.TOKENS)
    assert [row[: len(text)] for row in tokens] == [text] * 6
