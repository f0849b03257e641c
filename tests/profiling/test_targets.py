"""A target that is missed is said to be missed."""

from __future__ import annotations

from profiling.targets import summary, targets_of

CPU = {
    "case": "a case",
    "device": "cpu",
    "operator": "draft+verify",
    "sampler": "virtual",
    "target_size": 128256,
    "draft_size": 32768,
    "batch": 8,
    "draft_length": 4,
    "columns": 0,
    "stats": None,
    "dtype": "float32",
    "median_us": 300.0,
    "warm_us": 6.5,
    "graph_us": None,
    "floor_us": 200.0,
    "bytes": 2e6,
    "bytes_all": 2e6,
    "bytes_visited": 1e6,
    "peers": {"logsumexp": {"ratio": 0.4}, "eager": {"ratio": 12.0}},
}
GPU = {**CPU, "device": "cuda", "dtype": "bfloat16", "draft_length": 5, "stats": True}


def verdicts(row: dict) -> list[bool]:
    return [target.met for target in targets_of(row)]


def test_targets_on_the_cpu() -> None:
    assert verdicts(CPU) == [False, True]  # 2.5 times logsumexp; 12 times as fast as eager
    text = summary([CPU])
    assert "MISSED            2.5 <= 2  time / logsumexp of the rows visited: a case" in text
    assert "met               12 >= 10  times as fast as eager PyTorch: a case" in text
    assert verdicts({**CPU, "operator": "redistribute"}) == [True]
    gather = {**CPU, "operator": "gather_logits", "draft_size": None, "sampler": None}
    assert verdicts({**gather, "columns": 128}) == [False]  # 1.5 times its floor


def test_targets_on_a_gpu() -> None:
    verify = {**GPU, "operator": "verify"}
    assert verdicts({**verify, "batch": 1}) == [True, False]
    assert verdicts({**verify, "batch": 64, "median_us": 229.0}) == [True, False]
    assert verdicts({**verify, "batch": 64, "median_us": 231.0}) == [False, False]
    # Of 1 MB that is visited the floor is 100 us: 1.3 times that and 5 us.
    assert verdicts({**verify, "batch": 256, "median_us": 134.0}) == [True, False]
    assert verdicts({**verify, "batch": 256, "median_us": 136.0}) == [False, False]
    draft = {**GPU, "operator": "draft", "median_us": 204.0}
    assert verdicts({**draft, "batch": 1}) == [True, True, False]
    assert verdicts({**draft, "batch": 1, "graph_us": 7.5}) == [True, False, False]


def test_other_shapes_have_no_target() -> None:
    for change in ({"target_size": 32000}, {"sampler": "pruned"}, {"batch": 4, "device": "cpu"}):
        assert list(targets_of({**CPU, **change})) == []
    assert summary([]) == ""
