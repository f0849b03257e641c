"""What `python -m rdk_cuda inspect` prints."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rdk_cuda import Affinity, Vocabulary

from ..affinity.facts import Drafters, Facts, Row

SHOWN_VIRTUAL = 12  # virtual tokens in the summary
SHOWN_MEMBERS = 6  # members of each, there
SHOWN_TARGETS = 12  # target tokens of a row, and rows of a target token
WAYS = {
    "own": "drafted by a drafter token of their own",
    "shared": "drafted by a drafter token that they share",
    "prior": "drafted by priors alone",
    "never": "never drafted",
}


class TokenNames:
    """What target ids are called: their numbers and, with a tokenizer, their text in quotes."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer."""
        return self.tokenizer is not None

    def encode(self, text: str) -> list[int]:
        """The id of a token that the tokenizer calls so, or else the ids of the text."""
        named = self.tokenizer.get_vocab().get(text)
        if named is not None:
            return [named]
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def __call__(self, token: int) -> str:
        """For example `512 ' return'`; what would steer a terminal is escaped."""
        if self.tokenizer is None:
            return str(token)
        name = self.tokenizer.convert_ids_to_tokens(token)
        if name is None:  # models pad their vocabularies
            return f"{token} (not in the tokenizer)"
        text = self.tokenizer.decode([token])
        if "▁" in name:  # SentencePiece's space, which decoding strips
            text = name.replace("▁", " ")
        elif "\ufffd" in text:  # part of a character
            text = name
        return f"{token} {text!r}"


def show(
    source: str,
    affinity: Affinity,
    vocabulary: Vocabulary | None,
    names: TokenNames,
    asked: Sequence[tuple[str, Sequence[int]]],
) -> None:
    """Print what was asked for or, if nothing was, the summary and the largest virtual tokens.

    Args:
        asked: texts or numbers, each with its target ids.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    facts = Facts(affinity, vocabulary)
    if not asked:
        show_summary(console, source, facts)
        show_virtual_tokens(console, facts, names)
    for text, tokens in asked:
        if len(tokens) > 1:
            listed = ", ".join(map(names, tokens))
            console.print(f"\n{text!r} is {len(tokens)} tokens: {listed}.", soft_wrap=True)
        for token in tokens:
            show_token(console, facts, names, token)


def show_summary(console: Console, source: str, facts: Facts) -> None:
    """Sizes, and how many tokens are drafted which way."""
    affinity = facts.affinity
    masked, virtual = int(facts.masked.sum()), int(facts.virtual.sum())
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, figure in (
        ("drafter tokens (V_d)", affinity.draft_size),
        ("  with a target token of their own", int((~facts.masked & (facts.own >= 0)).sum())),
        ("  virtual, without one", virtual),
        ("  masked, never drafting", masked),
        ("target tokens (V_t)", affinity.target_size),
        *((f"  {WAYS[way]}", int(tokens.sum())) for way, tokens in facts.ways.items()),
        ("entries of S", affinity.nnz),
        ("priors (rank R)", affinity.rank),
        ("memory", f"{facts.bytes / 1e6:.3g} MB"),
    ):
        table.add_row(name, str(figure))
    console.print(source, soft_wrap=True)
    console.print(table)
    if facts.vocabulary is None:
        console.print(
            "\nAn affinity does not say which drafter tokens are kept tokens: here those with one "
            "entry are taken for them."
        )


def show_virtual_tokens(console: Console, facts: Facts, names: TokenNames) -> None:
    """Those that reach most target tokens, and their likeliest members."""
    rows = facts.largest_virtual(SHOWN_VIRTUAL)
    if not rows:
        console.print("\nNo virtual tokens.")
        return
    count = int(facts.virtual.sum())
    cut = f", the {len(rows)} of {count} that reach most target tokens" if count > len(rows) else ""
    console.print(f"\nVirtual tokens{cut}:")
    table = new_table("drafter\ntoken", "target\ntokens", "bias", "entropy\n(nats)", "offset")
    table.add_column("likeliest of them,\nin % of its mass", overflow="fold")
    for row in rows:
        members = ", ".join(
            f"{names(token)} {100 * mass:.3g}"
            for token, mass in zip(
                row.targets[:SHOWN_MEMBERS].tolist(), row.masses.tolist(), strict=False
            )
        )
        figures = (f"{value:.2f}" for value in (row.bias, row.entropy, row.offset))
        table.add_row(f"{row.draft}", f"{row.targets.numel()}", *figures, members)
    console.print(table)


def show_token(console: Console, facts: Facts, names: TokenNames, token: int) -> None:
    """Whether it is kept, where its mass goes, and what else drafts it."""
    console.print(f"\nTarget token {names(token)}", soft_wrap=True)
    own = facts.own == token
    for draft in own.nonzero().flatten().tolist():
        show_own_row(console, names, token, facts.row(draft))
    if not own.any():
        known = facts.vocabulary is not None
        console.print(f"{'Pruned: no' if known else 'No'} drafter token is its own.")
    drafters = facts.drafters_of(token)
    others = drafters.select(~own[drafters.drafts])
    if others.drafts.numel():
        show_drafters(console, facts, names, others)
        strongest = int(others.drafts[0])
        if facts.virtual[strongest]:
            show_virtual_token(console, names, token, facts.row(strongest))
    elif drafters.drafts.numel():
        console.print("No other drafter token reaches it.")
    else:
        console.print("Never drafted: no drafter token reaches it. As a dynamic token it can be.")


def show_own_row(console: Console, names: TokenNames, token: int, row: Row) -> None:
    """Where the mass of a kept token goes."""
    if row.bias == -math.inf:
        console.print(f"Kept, but masked: drafter token {row.draft} is its own and never drafts.")
        return
    bias = f", bias {row.bias:.2f}" if row.bias else ""
    console.print(f"Kept: drafter token {row.draft} is its own{bias}.")
    place = row.place_of(token)
    stays = 0.0 if place is None else float(row.masses[place])
    if row.targets.tolist() == [token]:
        console.print("All of its mass stays on it.")
        return
    console.print(
        f"Of its mass {percent(stays)} stays on it{through_priors(row)}. It reaches "
        f"{count_of(row.targets, 'target token')}{if_cut(row.targets)}:"
    )
    show_targets(console, names, row, token)


def show_drafters(console: Console, facts: Facts, names: TokenNames, others: Drafters) -> None:
    """The drafter tokens that reach a token which is not their own."""
    console.print(
        f"Drafted by {count_of(others.drafts, 'drafter token')} that it shares with others:"
    )
    table = new_table("drafter\ntoken", "share of\nits mass", "of that\nby priors", "bias")
    table.add_column("token of its own", overflow="fold")
    for draft, mass, by_prior in zip(
        others.drafts[:SHOWN_TARGETS].tolist(),
        others.masses.tolist(),
        others.by_prior.tolist(),
        strict=False,
    ):
        own = int(facts.own[draft])
        table.add_row(
            f"{draft}",
            percent(mass),
            percent(by_prior / mass),
            f"{float(facts.affinity.bias[draft]):.2f}",
            "none, it is virtual" if own < 0 else names(own),
        )
    console.print(table)


def show_virtual_token(console: Console, names: TokenNames, token: int, row: Row) -> None:
    """The other members of a token's virtual token."""
    place = row.place_of(token)
    console.print(
        f"Virtual token {row.draft}: bias {row.bias:.2f} = entropy {row.entropy:.2f} "
        f"{'-' if row.offset < 0 else '+'} offset {abs(row.offset):.2f}{through_priors(row)}. This "
        f"token is number {1 + (place or 0)} of {count_of(row.targets, 'target token')}"
        f"{if_cut(row.targets)}:"
    )
    show_targets(console, names, row, token)


def show_targets(console: Console, names: TokenNames, row: Row, token: int) -> None:
    """The likeliest target tokens of a row, and the one that was asked for."""
    shown = list(range(min(SHOWN_TARGETS, row.targets.numel())))
    place = row.place_of(token)
    if place is not None and place not in shown:
        shown.append(place)
    table = new_table("number", "share of\nits mass")
    table.add_column("target token", overflow="fold")
    for at in shown:
        target = int(row.targets[at])
        mark = "  (this token)" if target == token else ""
        table.add_row(f"{at + 1}", percent(float(row.masses[at])), names(target) + mark)
    console.print(table)


def new_table(*columns: str) -> Table:
    """A plain table of figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def through_priors(row: Row) -> str:
    """For example `, 30 % goes through prior 0`; nothing if nothing does."""
    used = row.by_prior.nonzero().flatten().tolist()
    if not used:
        return ""
    shares = (f"{percent(float(row.by_prior[prior]))} goes through prior {prior}" for prior in used)
    return ", " + " and ".join(shares)


def percent(share: float) -> str:
    """Three digits, for example `0.0123 %`."""
    return f"{100 * share:.3g} %"


def count_of(items: torch.Tensor, kind: str) -> str:
    """For example `1 drafter token`."""
    count = items.numel()
    return f"{count} {kind}{'' if count == 1 else 's'}"


def if_cut(items: torch.Tensor) -> str:
    """That not all of them are shown, if so."""
    return f", the first {SHOWN_TARGETS}" if items.numel() > SHOWN_TARGETS else ""
