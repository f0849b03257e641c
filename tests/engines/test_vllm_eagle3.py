"""An EAGLE-3 drafter with 2,048 tokens of its own, in a real vLLM with our worker.

Its dynamic tokens have no rows in the drafter: their logits are lifted from the target's head.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from .engine import DRAFTS, WORKER, Engine, speculation
from .exact import Joint
from .jobs import GREEDY, PROMPTS
from .our_decoder import our_decoder
from .pair import EAGLE3

FALSE_ALARM = 1e-4  # of each statistical test
SAMPLES = 768


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any], drafters: Path) -> Iterator[Engine]:
    """Closed before that of the other tests is started."""
    by_states = speculation(EAGLE3, method="eagle3")
    ours = Engine(worker=WORKER, drafter=drafters / "virtual-eagle3", speculative_config=by_states)
    yield ours
    ours.close()


@pytest.mark.parametrize("name", [None, "virtual-eagle3", "virtual-dynamic-eagle3"])
def test_greedy_text_is_that_of_plain_vllm(
    name: str | None, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(None if name is None else drafters / name)
    said, accepted = engine.drafted(PROMPTS, GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.5


@pytest.mark.parametrize("name", [None, "virtual-dynamic-eagle3"])
def test_first_tokens_have_the_joint_distribution_of_the_target(
    name: str | None, engine: Engine, drafters: Path
) -> None:
    engine.use(None if name is None else drafters / name)
    drawn = engine.tokens([PROMPTS[3]] * SAMPLES, SamplingParams(temperature=1.0, max_tokens=3))
    assert Joint(PROMPTS[3], 3, temperature=1.0).p_value(drawn) > FALSE_ALARM
    # A control: another temperature gives another distribution.
    assert Joint(PROMPTS[3], 3, temperature=1.3).p_value(drawn) < FALSE_ALARM


def test_a_seed_gives_the_text_of_our_decoder(engine: Engine, drafters: Path) -> None:
    """Alone and among others. Neither drafts before it has states, so their steps are the same.

    But for the last token: the decoder cuts the drafts that end behind it.
    """
    engine.use(drafters / "virtual-dynamic-eagle3")
    prompts, seeds = PROMPTS[:4], [123, 124, 2**40, 0]
    seeded = [SamplingParams(temperature=0.9, max_tokens=40, seed=seed) for seed in seeds]
    others = [SamplingParams(temperature=1.0, max_tokens=25, min_p=0.02)] * 16
    decoder = our_decoder(EAGLE3, drafters / "virtual-dynamic-eagle3", DRAFTS)
    made = decoder.generate(prompts, max_new_tokens=40, temperature=0.9, seeds=seeds)
    expected = [list(text)[:-1] for text in made.tokens]
    alone = [engine.tokens([one], [each])[0] for one, each in zip(prompts, seeded, strict=True)]
    among = engine.tokens([*PROMPTS[4:20], *prompts], [*others, *seeded])[16:]
    assert [text[:-1] for text in alone] == [text[:-1] for text in among] == expected
