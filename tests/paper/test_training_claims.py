"""Claims that train: each runs at smoke scale, and each judge can say yes and no."""

import json
import math
import shutil
from pathlib import Path

import pytest

from eigenbatch.errors import RunError
from eigenbatch_paper.claim import Chunk, Place
from eigenbatch_paper.registry import NAMES, claim
from eigenbatch_paper.reproduce import ClaimRun, judge_finished, reproduce
from eigenbatch_paper.tables import NONE
from eigenbatch_paper.training_chunks import compute, moco_chunk, training_chunk
from eigenbatch_paper.training_facts import (
    at_least,
    epochs_to,
    grouped,
    percent,
    saved,
    time_to,
    unreached,
)
from eigenbatch_paper.verdict import effect

pytestmark = pytest.mark.slow
TRAINING = [name for name in NAMES if claim(name).needs("paper")]


def curve(seed, *, final=0.5, speed=1.0, **settings):
    """A run that learns towards `final`; a higher speed gets there in fewer epochs."""
    heights = [0.2 + (final - 0.2) * min(1.0, speed * epoch / 8) for epoch in range(9)]
    readings = {
        "sigma_hat": [0.3] * 4, "alignment": [0.5] * 4, "gradient": [2.0] * 4,
        "paper_lower": [1.0] * 4, "paper_upper": [9.0] * 4, "certified_lower": [1.9] * 4,
        "certified_upper": [2.1] * 4, "entropy_rank": [10.0] * 4, "isotropy_gap": [3.7] * 4,
        "isotropy_gap_unbiased": [3.0] * 4, "participation_ratio": [9.0] * 4,
    }  # fmt: skip
    jitter = 1e-3 * seed
    return {
        "seed": seed, "batch_size": 8, "dim": 16, "method": "simclr", "data": "digits",
        "recipe": "digits", "queue_size": 8192,
        "curve_epochs": list(range(9)), "times": [10.0 * e + seed for e in range(9)],
        "knn": [h + jitter for h in heights],
        "rankme": [5.0 + e for e in range(9)], "losses": [4.0 + jitter] * 8, "mean_rank": 5.0,
        "selection_share": 0.01, "steps_per_epoch": 10, "final_accuracy": heights[-1] + jitter,
        "accuracy_area": sum(heights[1:]) / 8, "loss_area": 32 + 8 * jitter, "peak_sigma": 0.3,
        "collapsed": False, "read_at": [1, 11, 21, 31],
        "readings": readings,
        "final": {"linear": final + jitter, "linear_sgd": final + jitter,
                  "seconds": 90.0},
    } | settings  # fmt: skip


def policies(speeds, **settings):
    return [
        curve(seed, selector=name, speed=speed + 0.01 * seed, **settings)
        for name, speed in speeds.items()
        for seed in range(3)
    ]


@pytest.fixture(name="finished", scope="module")
def _finished(tmp_path_factory):
    """Every training claim at smoke scale, in one call: runs are shared."""
    out = tmp_path_factory.mktemp("claims")
    records = reproduce([claim(name) for name in TRAINING], "smoke", out, jobs=2)
    return out, {record["claim"]: record for record in records}


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_claim_gives_a_verdict_and_a_figure(finished, name):
    out, records = finished
    assert records[name]["measured"]
    assert records[name]["seeds"] >= 2
    run = ClaimRun.open(claim(name), "smoke", out)
    assert run.figure.stat().st_size > 5000
    assert json.loads(run.verdict.read_text()) == records[name]
    assert not run.pending()


def test_claims_share_runs_and_finished_ones_are_not_trained_again(finished):
    out, _ = finished
    runs = [path.parent.name for path in (out / "smoke" / "training").glob("*/manifest.json")]
    asked = [chunk.name for name in TRAINING for chunk in claim(name).chunks("smoke")]
    assert {run.split("-first-")[0] for run in runs} <= set(asked)  # some only begin a run
    assert len(runs) < len(asked)
    before = {p: p.stat().st_mtime_ns for p in (out / "smoke" / "training").rglob("checkpoint.pt")}
    list(reproduce([claim("wall-clock")], "smoke", out, jobs=1))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_rows_of_other_claims_stand_for_the_same_runs(finished, tmp_path):
    out, _ = finished
    for name in ("similar-batches", "rank-accuracy"):
        rows = Path("smoke", name, "rows.jsonl")
        (tmp_path / rows).parent.mkdir(parents=True)
        shutil.copy(out / rows, tmp_path / rows)
    run = ClaimRun.open(claim("pool-policies"), "smoke", tmp_path)
    missing = {chunk.settings["selector"] for chunk in run.pending()}
    assert missing == {"p2"}  # random, p1 and p3 were trained for the two others
    for other in ("trace-update", "wall-clock"):  # another kind of work, and a comparison of times
        whole = claim(other).chunks("smoke")
        assert len(ClaimRun.open(claim(other), "smoke", tmp_path).pending()) == len(whole)
    (record,) = judge_finished([claim("rank-plateau"), claim("wall-clock")], "smoke", tmp_path)
    assert record["claim"] == "rank-plateau"  # without a row of its own
    other = tmp_path / "smoke" / "similar-batches" / "rows.jsonl"
    other.write_text('{"chunk": 3}\n')
    assert not ClaimRun.open(claim("rank-accuracy"), "smoke", tmp_path).pending()
    damaged = tmp_path / "smoke" / "rank-accuracy" / "rows.jsonl"
    lines = [json.loads(line) for line in damaged.read_text().splitlines()]
    damaged.write_text("".join(json.dumps(line | {"rows": [{}]}) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"rank-accuracy.rows.jsonl does not hold what rank-plateau"):
        list(judge_finished([claim("rank-plateau")], "smoke", tmp_path))


def test_without_images_the_flag_is_named(tmp_path):
    with pytest.raises(RunError, match="--data-dir"):
        list(reproduce([claim("wall-clock")], "small", tmp_path))


def test_equal_settings_are_one_chunk_and_others_another():
    assert training_chunk("small", 0, selector="p3") == training_chunk("small", 0, selector="p3")
    names = {
        training_chunk("small", 0).name,
        training_chunk("small", 1).name,
        training_chunk("small", 0, strength=0.5).name,
        moco_chunk("small", 0).name,
    }
    assert len(names) == 4


def test_an_unreached_target_is_said_and_never_significant():
    rows = [curve(s, selector="random") for s in range(3)]
    never = [curve(s, selector="p3", final=0.25) for s in range(3)]
    difference = saved(
        never, rows, lambda row: 1.0 if row["selector"] == "random" else float("inf")
    )
    assert not difference.significant
    assert percent(difference) == "not known, for lack of a time in some pair"
    assert [time_to(0.4)(row) for row in never] == [row["times"][-1] for row in never]
    assert [epochs_to(0.4)(row) for row in never] == [8.0] * 3
    assert "3 of 6 runs do not reach it" in unreached(rows + never, 0.4)
    assert list(grouped(rows + never, "selector")) == ["random", "p3"]


def test_a_pair_in_which_neither_run_reaches_the_target_says_nothing():
    low, lower = ([curve(s, selector="p3", final=one) for s in range(3)] for one in (0.25, 0.2))
    reaching = [curve(s, selector="random") for s in range(3)]
    for quantity in (time_to(0.4), epochs_to(0.4)):
        assert effect(saved(low, lower, quantity), 0.15) == "open"
        assert effect(saved(reaching, low, quantity)) == "shown"  # at least so much
        assert effect(saved(low, reaching, quantity), 0.15) == "refuted"
    assert at_least("8.0", low, 0.4) == "at least 8.0"
    assert at_least(NONE, low, 0.4) == NONE


FAST = {
    "random": 1.0, "p3": 1.5, "greedy-16": 1.1, "greedy-64": 1.5, "greedy-256": 1.5, "p1": 1.2,
    "greedy-pool": 1.5, "recipe": 2.0, "recipe-2": 2.0, "p1-greedy-2": 2.0, "p2": 1.3,
    "neighbours": 1.0, "p3-1.05-1.15": 1.5,
}  # fmt: skip
SLOW = FAST | {"greedy-64": 0.9, "p3": 0.9, "recipe-2": 0.9}
SHOWN = ("reproduced", "holds under stated conditions")
POLICIES = ("p3", "greedy-64", "greedy-pool", "neighbours")


@pytest.mark.parametrize("name", ["greedy-cifar", "wall-clock", "practical-recipe"])
def test_speed_is_judged_by_the_paired_time_to_the_target(name):
    assert claim(name).judge(policies(FAST)).outcome in SHOWN
    assert claim(name).judge(policies(SLOW)).outcome == "does not reproduce"
    noisy = policies(FAST)
    for row in noisy:
        row["times"] = [t * (1 + (row["seed"] - 1) * (row["selector"] != "random")) + 1
                        for t in row["times"]]  # fmt: skip
    assert claim(name).judge(noisy).outcome == "inconclusive"


def test_pool_policies_are_judged_by_the_loss_area():
    same = policies(dict.fromkeys(("random", "p1", "p2", "p3"), 1.0))
    off = {"random": 0.0, "p1": 0.3, "p2": 0.2, "p3": 0.1}
    lower = [row | {"loss_area": row["loss_area"] - 8 * off[row["selector"]]} for row in same]
    verdict = claim("pool-policies").judge(lower)
    assert verdict.outcome == "holds under stated conditions"
    assert "P2's loss area is the lowest" in verdict.note
    assert claim("pool-policies").judge(same).outcome == "does not reproduce"


def test_peaks_at_the_first_reading_are_counted_though_readings_are_rounded():
    rows = policies(dict.fromkeys(("random", "p1", "p2", "p3"), 1.0), peak_sigma=0.8384123)
    for row in rows:
        row["readings"]["sigma_hat"] = [0.838412, 0.5, 0.4, 0.3]
    rows[0]["readings"]["sigma_hat"] = [0.5, 0.838412, 0.4, 0.3]
    assert "in 11 of 12 runs" in claim("pool-policies").judge(rows).note


def test_pool_size_needs_a_saving_to_divide():
    def rows(speed):
        runs = policies({"random": 1.0}, pool_size=80)
        return runs + [
            row for k in (32, 80) for row in policies({"p3": speed * (1 + k / 1000)}, pool_size=k)
        ]

    assert claim("pool-size").judge(rows(1.15)).outcome in SHOWN
    assert "share of it" in claim("pool-size").judge(rows(1.15)).measured
    slower = claim("pool-size").judge(rows(0.9))
    assert slower.outcome == "does not reproduce"
    assert "share" not in slower.measured
    alone = [row for row in rows(1.15) if row["seed"] == 0]
    assert claim("pool-size").judge(alone).outcome == "inconclusive"


@pytest.mark.parametrize(("name", "change"), [
    ("real-band", {"paper_upper": [1.5] * 4}),
    ("queue-band", {"paper_lower": [2.5] * 4}),
    ("isotropy-training", {"isotropy_gap": [60.0] * 4}),
])  # fmt: skip
def test_one_figure_decides_the_readings_claims(name, change):
    good = [curve(seed) for seed in range(3)]
    assert claim(name).judge(good).outcome == "reproduced"
    bad = [row | {"readings": row["readings"] | change} for row in good]
    assert claim(name).judge(bad).outcome == "does not reproduce"


@pytest.mark.parametrize(("active", "passive", "bound", "outcome"), [
    (0.855, 0.855, 9.0, "reproduced"), (0.5, 0.855, 9.0, "holds under stated conditions"),
    (0.855, 2.0, 9.0, "holds under stated conditions"), (2.0, 0.855, 9.0, "does not reproduce"),
    (0.855, 0.855, 0.1, "holds under stated conditions"),
])  # fmt: skip
def test_whitening_is_judged_by_the_ratio_of_variances(active, passive, bound, outcome):
    def gradient(noise, seed, *, spans=True):
        noise *= 1 + 0.01 * seed
        quiet = [spans and not i // 10 % 2 for i in range(80)]
        return [5 + (1 if i % 2 else -1) * (1.0 if quiet[i] else noise) for i in range(80)]

    spans = {"whiten_period": 10, "whiten_after": 0}
    sigma, raw = [1.05 / 16] * 80, [5 + (1 if i % 2 else -1) for i in range(80)]
    shared = {"sigma_hat": sigma, "gradient_rolling_variance_bound": [bound] * 80}
    rows = [
        row
        for seed in range(3)
        for row in (
            curve(seed, arm="active", **spans)
            | {"readings": shared | {"gradient": gradient(active, seed)}},
            curve(seed, arm="passive", **spans)
            | {
                "readings": shared | {"gradient": raw},
                "copies": {"gradient": gradient(passive, seed, spans=False), "sigma_hat": sigma},
            },
        )
    ]
    assert claim("whitening").judge(rows).outcome == outcome


def test_whitening_of_copies_leaves_training_as_it_is(tmp_path):
    """A passive run has the losses of a raw one; its copies are whiter than its batches."""
    active, passive = claim("whitening").chunks("smoke")[:2]
    (row,) = claim("whitening").compute(passive, Place(tmp_path))
    settings = {k: v for k, v in passive.settings.items() if k != "measure"}
    (raw,) = compute(Chunk("raw", settings), Place(tmp_path))
    assert row["losses"] == raw["losses"]
    assert len(row["copies"]["gradient"]) == len(row["readings"]["gradient"])
    pairs = zip(row["copies"]["sigma_hat"], row["readings"]["sigma_hat"], strict=True)
    assert all(white < plain for white, plain in pairs)
    (turned,) = claim("whitening").compute(active, Place(tmp_path))
    assert turned["losses"] != raw["losses"]


@pytest.mark.parametrize(("sign", "outcome"), [
    (1, "holds under stated conditions"), (-1, "does not reproduce"),
])  # fmt: skip
def test_rank_and_accuracy_are_judged_by_their_correlation(sign, outcome):
    ranks = {"random": 7.0, "p1": 8.0, "greedy-64": 9.0, "p3": 9.5}
    rows = [
        curve(seed, selector=name, final=0.5 + sign * 0.01 * rank)
        for name, rank in ranks.items()
        for seed in range(3)
    ]
    for row in rows:
        rank = ranks[row["selector"]] + 0.001 * row["seed"]
        row["readings"] = row["readings"] | {"entropy_rank": [1.0, 1.0, 1.0, rank]}
    assert claim("rank-accuracy").judge(rows).outcome == outcome


@pytest.mark.parametrize(("gain", "spread", "outcome"), [
    (0.005, 0.001, "reproduced"), (0.02, 0.001, "holds under stated conditions"),
    (0.0, 0.01, "inconclusive"), (0.0, 0.0001, "does not reproduce"),
    (-0.02, 0.001, "does not reproduce"),
])  # fmt: skip
def test_transfer_is_judged_by_the_probe_on_other_data(gain, spread, outcome):
    rows = [
        curve(seed, selector=name)
        | {"probes": {"cifar10": 0.5 + (gain + spread * (seed - 1)) * (name == "p3")}}
        for name in ("random", "p3")
        for seed in range(3)
    ]
    assert claim("transfer").judge(rows).outcome == outcome


@pytest.mark.parametrize(("name", "settings"), [
    ("similar-batches", {}), ("redundant-data", {"copies": 4}),
])  # fmt: skip
def test_diversity_is_judged_by_final_accuracy(name, settings):
    def rows(gain):
        return [
            curve(seed, selector=policy, final=0.5 + gain * (policy in ("greedy-64", "p3")),
                  **settings)
            for policy in ("random", *POLICIES)
            for seed in range(3)
        ]  # fmt: skip

    assert claim(name).judge(rows(0.05)).outcome == "reproduced"
    assert claim(name).judge(rows(-0.05)).outcome == "does not reproduce"


@pytest.mark.parametrize(("gain", "outcome"), [
    (0.02, "reproduced"), (0.0, "reproduced"), (-0.05, "does not reproduce"),
])  # fmt: skip
def test_hard_batches_on_pictures_are_judged_on_each_set(gain, outcome):
    rows = [
        curve(seed, selector=policy, data=data, final=0.5 + (more if data == "cifar10" else 0.0))
        for data in ("folder", "cifar10")
        for policy, more in {"random": 0.0, "neighbours": gain}.items()
        for seed in range(3)
    ]
    assert claim("picture-batches").judge(rows).outcome == outcome


def test_augmentation_is_judged_at_every_strength():
    def rows(strong):
        return policies({"p3": 1.0}, strength=1.0) + [
            row
            for strength, speed in ((0.5, 1.17), (1.0, 1.17), (1.5, strong))
            for row in policies({"random": 1.0, "greedy-64": speed}, strength=strength)
        ]

    judge = claim("augmentation").judge
    assert judge(rows(1.17)).outcome in SHOWN
    assert judge(rows(0.9)).outcome == "does not reproduce"


def moco(selector, queue, speed, **settings):
    return policies({selector: speed}, method="moco", queue_size=queue, **settings)


@pytest.mark.parametrize(("speed", "outcome"), [
    (1.09, "holds under stated conditions"), (0.9, "does not reproduce"),
])  # fmt: skip
def test_moco_policies_are_judged_by_epochs(speed, outcome):
    rows = moco("random", 64, 1.0) + moco("random", 128, 1.0)
    for selector in ("p3", "greedy-64", "p3-0.3", "p3-0.7"):
        rows += moco(selector, 128, speed)
    rows += moco("p3", 64, speed)
    assert claim("moco-policies").judge(rows).outcome == outcome
    main = [r for r in rows if r["queue_size"] == 128 and not r["selector"].startswith("p3-")]
    verdict = claim("moco-policies").judge(main)  # as at scale small
    assert verdict.outcome == outcome
    assert "shorter queues are run at paper scale" in verdict.note


@pytest.mark.parametrize(("speed", "outcome"), [
    (1.5, "holds under stated conditions"), (0.9, "does not reproduce"),
])  # fmt: skip
def test_strong_baselines_are_judged_by_epochs_and_accuracy(speed, outcome):
    rows = moco("random", 64, 1.0) + moco("p3", 64, speed) + moco("greedy-64", 64, 1.0)
    for kind in ("mixed", "distance"):
        rows += [row | {"selector": None} for row in moco("random", 64, 1.0, negatives=kind)]
    rows += [curve(s, method="supcon", final=0.7) for s in range(3)]
    assert claim("strong-baselines").judge(rows).outcome == outcome


@pytest.mark.parametrize(("power", "left", "outcome"), [
    (1, 0, "reproduced"), (1, 0.4, "holds under stated conditions"), (8, 0, "does not reproduce"),
])  # fmt: skip
def test_alignment_is_judged_by_a_linear_fit(power, left, outcome):
    centres = [-0.975 + 0.05 * i for i in range(40)]
    norms = [1000 * (left + ((1 - c) / 2) ** power) for c in centres]
    rows = [{"seed": 0, "counts": [1000] * 40, "norms": norms, "floors": norms}]
    assert claim("alignment-gradient").judge(rows).outcome == outcome


def test_a_short_run_of_alignment_starts_afresh(tmp_path):
    chunk = claim("alignment-gradient").chunks("smoke")[0]
    place = Place(tmp_path)
    whole = tmp_path / chunk.name  # of a claim that trains the same run to its end
    whole.mkdir()
    first = claim("alignment-gradient").compute(chunk, place)
    assert claim("alignment-gradient").compute(chunk, place) == first
    assert list(whole.iterdir()) == []


@pytest.mark.parametrize(("value", "outcome"), [
    (1e-5, "reproduced"), (5e-4, "holds under stated conditions"), (0.3, "does not reproduce"),
])  # fmt: skip
def test_queue_correlation_is_judged_at_the_end(value, outcome):
    rows = [{"seed": s, "read_at": [10, 20], "correlation": [0.5, value]} for s in range(2)]
    assert claim("queue-correlation").judge(rows).outcome == outcome


@pytest.mark.parametrize(("miss", "outcome"), [
    (0.14, "reproduced"), (0.9, "does not reproduce"),
])  # fmt: skip
def test_the_variance_remainder_is_judged_by_the_last_readings(miss, outcome):
    rows = [curve(seed, batch_size=64, tau=0.1) for seed in range(3)]
    for row in rows:
        forces = [(one / 0.1) ** 2 for one in [1.0] * 9 + [miss]]
        row["readings"] = {"gradient_force": forces, "sigma_hat": [0.3] * 10}
    assert claim("variance-remainder").judge(rows).outcome == outcome


CALM, EARLY = [0.3] * 7, [0.995, *[0.3] * 6]
ABOVE = [0.3, 0.3, *[0.995] * 5]


@pytest.mark.parametrize(("sigma", "end", "outcome"), [
    (EARLY, 0.5, "does not reproduce"), (EARLY, 0.1, "reproduced"),
    (ABOVE, 0.1, "reproduced"), (ABOVE, math.nan, "reproduced"),
    (ABOVE, 0.5, "does not reproduce"), (CALM, 0.1, "inconclusive"),
])  # fmt: skip
def test_the_collapse_margin_is_judged_by_the_accuracy_of_runs_that_exceed_it(sigma, end, outcome):
    fine = curve(0, lr=1.0) | {"read_at": list(range(5, 75, 10)), "first_accuracy": 0.2}
    fine |= {"curve_epochs": [0.0, 7.0], "knn": [0.2, 0.6], "steps_per_epoch": 10.0}
    fine["readings"] = fine["readings"] | {"sigma_hat": CALM}
    bad = fine | {"readings": fine["readings"] | {"sigma_hat": sigma}, "knn": [0.2, end]}
    assert claim("collapse-margin").judge([fine, bad, bad, bad]).outcome == outcome
    if sigma is not CALM:
        assert claim("collapse-margin").judge([fine, bad, bad]).outcome == "inconclusive"


def test_a_collapse_without_a_warning_is_held_against_the_margin():
    rows = []
    for sigma, end in (*[(ABOVE, 0.1)] * 3, (CALM, 0.1)):
        row = curve(0, lr=1.0) | {"read_at": list(range(5, 75, 10)), "first_accuracy": 0.2}
        row |= {"curve_epochs": [0.0, 7.0], "knn": [0.2, end], "steps_per_epoch": 10.0}
        rows.append(row | {"readings": row["readings"] | {"sigma_hat": sigma}})
    assert claim("collapse-margin").judge(rows).outcome == "holds under stated conditions"


@pytest.mark.parametrize(("dim", "below", "above", "outcome"), [
    (16, 0.02, 0.0, "reproduced"), (16, -0.02, 0.0, "does not reproduce"),
    (16, 0.02, 0.02, "does not reproduce"), (16, 0.02, None, "inconclusive"),
    (8, 0.02, None, "does not reproduce"),
    (16, 0.02, 1e-9, "inconclusive"),  # mostly noise: eight runs cannot show that there is nothing
])  # fmt: skip
def test_the_rank_plateau_compares_runs_at_the_same_epoch(dim, below, above, outcome):
    """Ten classes; `above` is None where no run gets beyond the plateau."""
    rows = []
    for seed, noise in enumerate((1, -1, -1, 1, 1, -1, -1, 1)):  # orthogonal to the seeds
        row = curve(seed, selector="p3", dim=dim)
        epochs = row["curve_epochs"]
        late = [above is not None and 2 * e > epochs[-1] for e in epochs]
        ranks = [9.2 + 0.3 * seed if one else 4 + 0.3 * seed for one in late]
        accuracies = [
            0.5
            + 0.05 * e
            + 0.001 * noise * (above != 0 or not one)
            + seed * (above if one else below)
            for e, one in zip(epochs, late, strict=True)
        ]
        steps = [e * row["steps_per_epoch"] for e in epochs]
        row |= {"knn": accuracies, "read_at": steps}
        row["readings"] = row["readings"] | {"entropy_rank": ranks}
        rows.append(row)
    assert claim("rank-plateau").judge(rows).outcome == outcome
