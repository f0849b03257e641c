"""What both engines are asked, and what plain vLLM answers."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from .engine import Engine
from .exact import prompts_of
from .interpreter import V2
from .pair import TARGET

PROMPTS = prompts_of(40)
# Model runner V2 is asked for less: its kernels are interpreted.
ASKED, FIRST = (PROMPTS[:6], PROMPTS[26:27]) if V2 else (PROMPTS, PROMPTS[:3])
SAMPLES = 256 if V2 else 768
GREEDY = SamplingParams(temperature=0, max_tokens=16 if V2 else 48)
LOGPROBS = SamplingParams(temperature=0, max_tokens=8 if V2 else 16, logprobs=5)
# Of one token more than a block of the cache, so that one is left to be read when it is sent again.
ONE_LEFT = [token for prompt in PROMPTS for token in prompt][:129]
REPELLED = SamplingParams(temperature=0, max_tokens=6, presence_penalty=1.5)
OFTEN = [361, 12, 14, 274, 319, 320, 375]
WORDS = ["self", "name", "value", "return", "None", "is", "the"]


def _parameters() -> dict[str, SamplingParams]:
    """Greedy requests whose parameters change what the target says."""
    often, stop = OFTEN, list(map(AutoTokenizer.from_pretrained(TARGET).decode, OFTEN))
    grammar = "(self|name|value|[a-z_]{2,8})( = | in |\\()[a-z0-9]{1,6}"
    each: dict[str, dict[str, Any]] = {
        "nothing": {},
        "repetition penalty": {"repetition_penalty": 1.3},
        "frequency penalty": {"frequency_penalty": 0.7},
        "presence penalty": {"presence_penalty": 1.5},
        "all penalties": {
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.3,
        },
        "logit bias": {"logit_bias": dict.fromkeys(often, -4.0) | {221: 3.0}},
        "bias and penalty": {"logit_bias": dict.fromkeys(often, 2.0), "repetition_penalty": 1.2},
        "bad words": {"bad_words": ['"""', ",", ".", "is", "of", "self", "self."]},
        "allowed tokens": {"allowed_token_ids": list(range(200, 900))},
        "stop token": {"stop_token_ids": often},
        "minimum": {"stop_token_ids": often, "min_tokens": 11},
        "stop string": {"stop": stop},
        "grammar": {"structured_outputs": StructuredOutputsParams(regex=grammar)},
        "min-p": {"min_p": 0.5},
    }
    tokens = 14 if V2 else 32
    return {
        name: SamplingParams(temperature=0, max_tokens=tokens, **of) for name, of in each.items()
    }


PARAMETERS = _parameters()
# So little text does not show it in V2.
UNCHANGED = {"nothing", "min-p"} | ({"frequency penalty"} if V2 else set())


def with_grammar(temperature: float, tokens: int = 3) -> SamplingParams:
    """Drawn among a few words."""
    return SamplingParams(
        temperature=temperature,
        max_tokens=tokens,
        structured_outputs=StructuredOutputsParams(choice=WORDS),
    )


def record(engine: Engine) -> dict[str, Any]:
    """What an engine says to all that is not drawn."""
    jobs = [(prompt, each) for each in PARAMETERS.values() for prompt in FIRST]
    said = iter(engine.tokens(*zip(*jobs, strict=True)))
    return {
        "greedy": engine.tokens(ASKED, GREEDY),
        "parameters": {name: [next(said) for _ in FIRST] for name in PARAMETERS},
        "one left": [engine.tokens([ONE_LEFT], REPELLED) for _ in range(2)],
        "logprobs": engine.generate(PROMPTS[: 2 if V2 else 5], LOGPROBS),
    }
