"""What drafters are worth in a real serving engine."""

from __future__ import annotations

from ..tables import figure, table
from .results import RESULTS, Link, Row, content, paragraph, threads

EVIDENCE = "vllm/cpu.json"
KINDS = {
    "eagle3": "EAGLE-3, its 2,048 tokens",
    "full": "a model, full head",
    "pruned": "pruned",
    "virtual": "virtual tokens",
    "virtual-dynamic": "virtual and dynamic",
}


def engine_table(link: Link) -> str:
    """docs/serving.md"""
    found = content(EVIDENCE)
    plain = found["plain_vllm_with_its_own_speculation"]
    lines = []
    for row in found["drafters"]:
        if row["drafter"].endswith("-25"):
            continue
        low, high = row["less_that"]
        lines.append(
            [
                *greedy_cells(row),
                f"{row['accepted_per_step_at_temperature_1']:.3f}",
                f"[{low:+.3f}, {high:+.3f}]",
                figure(row["draft_state_bytes_per_position"] / 1024),
            ]
        )
    prompts = found["drafters"][0]["prompts"]
    titles = ["drafter", f"equal of {prompts}", "accepted, greedy", "T = 1", "less ours"]
    titles.append("KiB a draft")
    drawn = [*found["drawn"], {"setting": "with a grammar", **found["drawn_with_a_grammar"]}]
    worst = min(float(row["p_value"]) for row in drawn)
    controls = (float(row["p_value_of_the_control"]) for row in drawn)
    control = max(1e-300, float(plain["p_value"]), *controls)
    data = link("data", f"{RESULTS}/{EVIDENCE}")
    return "\n\n".join(
        [
            paragraph(
                f"vLLM {found['vllm']} with the demo's former target, of five layers, and",
                f"K = {found['drafts_per_step']},",
                f"on {threads(found)} of an {found['device_name']}: how many greedy texts equal",
                "plain vLLM's, accepted drafts of a step, at T = 1 also less those of the decoder",
                "here with the same seeds (a 95 % interval over prompts), and the memory of a",
                "draft until its verification. vLLM's own draft probabilities take",
                f"{figure(plain['draft_state_bytes_per_position'] / 1024)} KiB ({data}):",
            ),
            table(titles, lines, "lr"),
            paragraph(
                f"Of {drawn[0]['samples']:,} times the first three tokens after a prompt",
                f"({'; '.join(str(row['setting']) for row in drawn)}), the least p-value is",
                f"{figure(worst)}. Those of the controls, and of vLLM's own speculation at",
                f"{plain['setting']}, are at most {control:.0e}.",
            ),
        ]
    )


def greedy_cells(row: Row) -> list[str]:
    """The drafter, the texts that are plain vLLM's, and how many drafts a step accepts."""
    name, _, kept = row["drafter"].rpartition("-")
    kind = KINDS[name or kept]
    if kept == "eagle3" and name:
        kind = f"EAGLE-3, {kind}"
    elif name:
        kind = f"{kind}, {kept} % kept"
    return [kind, f"{row['equal']}", f"{row['accepted_per_step']:.3f}"]
