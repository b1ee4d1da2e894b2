"""Every synthetic claim runs, resumes and can say both yes and no."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eigenbatch import Contrast, gradient_band
from eigenbatch.errors import ParameterError
from eigenbatch.runs import line_fit
from eigenbatch_paper import registry, softmax_remainder
from eigenbatch_paper.batch_bands import batch_bands, decomposed
from eigenbatch_paper.claim import SCALES, Chunk, Claim, Place
from eigenbatch_paper.claims import (
    anisotropy_coverage,
    correlated_negatives,
    greedy_rationale,
    isotropy_floor,
    matrix_concentration,
    numerical_scale,
    operator_norm,
    p3_sanity,
    pool_returns,
    printed_ceiling,
    probable_band,
    rank_estimators,
    second_order_remainder,
    softmax_expansion,
    synthetic_band,
    temperature_law,
    trace_update,
    variance_band,
)
from eigenbatch_paper.reproduce import ClaimRun, judge_finished, reproduce
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    spiked_eigenvalues,
)
from eigenbatch_paper.verdict import Verdict

pytestmark = pytest.mark.slow
SYNTHETIC = (
    "synthetic-band",
    "temperature-law",
    "correlated-negatives",
    "anisotropy-coverage",
    "variance-band",
    "numerical-scale",
    "trace-update",
    "greedy-rationale",
    "p3-sanity",
    "matrix-concentration",
    "isotropy-floor",
    "pool-returns",
    "softmax-expansion",
    "second-order-remainder",
    "rank-estimators",
    "printed-ceiling",
    "probable-band",
    "operator-norm",
)
REPRODUCED = "reproduced"
CONDITIONS = "holds under stated conditions"
NOT = "does not reproduce"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All synthetic claims at smoke scale, by name."""
    out = tmp_path_factory.mktemp("claims")
    claims = [registry.claim(name) for name in SYNTHETIC]
    records = {r["claim"]: r for r in reproduce(claims, "smoke", out, jobs=2)}
    return out, records


def rows_of(finished, name):
    out, _ = finished
    claim = registry.claim(name)
    return [row for rows in ClaimRun.open(claim, "smoke", out).done().values() for row in rows]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_every_claim_gives_a_verdict_and_a_figure_at_smoke_scale(finished, name):
    out, records = finished
    record = records[name]
    assert record["outcome"] in (REPRODUCED, CONDITIONS, NOT)
    assert record["measured"]
    assert json.loads((out / "smoke" / name / "verdict.json").read_text()) == record
    assert (out / "smoke" / name / "figure.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", SYNTHETIC)
def test_every_claim_states_its_size_time_and_distinct_chunks_at_every_scale(name):
    claim = registry.claim(name)
    assert claim.name == name
    for scale in SCALES:
        chunks = claim.chunks(scale)
        keys = {json.dumps([c.name, c.settings], sort_keys=True) for c in chunks}
        assert len(keys) == len(chunks) > 0
        assert claim.size[scale]
        assert claim.minutes[scale] > 0


@pytest.mark.parametrize("name", [name for name in SYNTHETIC if name != "pool-returns"])
def test_a_chunk_computed_again_gives_the_same_rows(finished, name, tmp_path):
    out, _ = finished
    claim = registry.claim(name)
    chunk = claim.chunks("smoke")[-1]
    key = json.dumps([chunk.name, chunk.settings], sort_keys=True)
    torch.manual_seed(99)  # the global generator must not matter
    again = claim.compute(chunk, Place(tmp_path))
    stored = ClaimRun.open(claim, "smoke", out).done()[key]
    assert _close(json.loads(json.dumps(again)), stored)


def _close(a, b):
    """Equal up to the rounding of a product on another number of threads."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == pytest.approx(b, rel=1e-5, abs=1e-12)
    return a == b


def test_pool_returns_chooses_the_same_batches_again(finished, tmp_path):
    chunk = pool_returns.CLAIM.chunks("smoke")[0]
    again = pool_returns.CLAIM.compute(chunk, Place(tmp_path))
    stored = [r for r in rows_of(finished, "pool-returns") if r["kind"] == chunk.settings["kind"]]
    assert [r["rank"] for r in again] == pytest.approx([r["rank"] for r in stored], rel=1e-5)


def _count_calls(chunk, place):
    """Leaves a trace of each call; the chunk called "bad" fails until it is repaired."""
    place.runs.mkdir(parents=True, exist_ok=True)
    with (place.runs / "calls").open("a") as file:
        file.write(chunk.name + "\n")
    if chunk.name == "bad" and not (place.runs / "repaired").exists():
        raise RuntimeError("power cut")
    return [{"name": chunk.name}]


def _say_names(rows):
    return Verdict(REPRODUCED, ", ".join(row["name"] for row in rows))


def _draw_nothing(rows, figure):
    figure.subplots()


def test_a_run_that_broke_off_keeps_finished_chunks_and_computes_only_the_rest(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("eigenbatch_paper.reproduce.commit", lambda: "older")
    claim = Claim(
        name="counted", section="", statement="", printed="", criterion="",
        size=dict.fromkeys(SCALES, "x"), minutes=dict.fromkeys(SCALES, 1.0),
        chunks=lambda scale: [Chunk("first"), Chunk("bad"), Chunk("last")],
        compute=_count_calls, judge=_say_names, draw=_draw_nothing,
    )  # fmt: skip
    place = tmp_path / "smoke" / "training"
    with pytest.raises(RuntimeError, match="power cut"):
        list(reproduce([claim], "smoke", tmp_path, jobs=1))
    assert [c.name for c in ClaimRun.open(claim, "smoke", tmp_path).pending()] == ["bad", "last"]
    (place / "repaired").touch()
    monkeypatch.setattr("eigenbatch_paper.reproduce.commit", lambda: "newer")
    (record,) = reproduce([claim], "smoke", tmp_path, jobs=1)
    assert record["measured"] == "first, bad, last"
    assert record["commits"] == ["older", "newer"]
    calls = (place / "calls").read_text().split()
    assert calls.count("first") == 1
    (again,) = reproduce([claim, claim], "smoke", tmp_path, jobs=1)  # named twice, run once
    assert again == record
    assert (place / "calls").read_text().split() == calls
    lines = tmp_path / "smoke" / "counted" / "rows.jsonl"
    lines.write_bytes(lines.read_bytes()[:-9])  # a crash in the middle of the last line
    (mended,) = reproduce([claim], "smoke", tmp_path, jobs=1)
    assert mended == record


def test_finished_seeds_are_judged_before_the_others_are_computed(tmp_path):
    chunks = [Chunk(f"{name}-{seed}", {"seed": seed}) for seed in range(2) for name in ("a", "b")]
    claim = _claim_of(chunks)
    assert list(judge_finished([claim], "smoke", tmp_path)) == []
    run = ClaimRun.open(claim, "smoke", tmp_path)
    for chunk in chunks[:3]:
        run.add(chunk, [{"name": chunk.name}], 1.0)
    (record,) = judge_finished([claim], "smoke", tmp_path)
    assert record["measured"] == "a-0, b-0"  # b of seed 1 is missing
    assert (record["seeds"], record["size"]) == (1, "x, so far 2 of 4 parts")
    assert not (tmp_path / "smoke" / "training" / "calls").exists()


def test_a_seed_is_finished_on_one_data_set_before_it_is_on_another(tmp_path):
    chunks = [
        Chunk(f"{name}-{data}", {"seed": 0, "data": data})
        for data in ("x", "y")
        for name in ("a", "b")
    ]
    run = ClaimRun.open(_claim_of(chunks), "smoke", tmp_path)
    for chunk in chunks[:3]:
        run.add(chunk, [{"name": chunk.name}], 1.0)
    assert run.finished_seeds() == chunks[:2]


def _claim_of(chunks):
    return Claim(
        name="seeded", section="", statement="", printed="", criterion="",
        size=dict.fromkeys(SCALES, "x"), minutes=dict.fromkeys(SCALES, 1.0),
        chunks=lambda scale: chunks, compute=_count_calls, judge=_say_names, draw=_draw_nothing,
    )  # fmt: skip


WORKER = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from eigenbatch_paper.reproduce import _begin_worker

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=_begin_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_a_worker_ends_when_the_command_is_killed(tmp_path):
    (tmp_path / "command.py").write_text(WORKER)
    command = subprocess.Popen([sys.executable, tmp_path / "command.py"], stdout=subprocess.PIPE)
    worker = int(command.stdout.readline())
    command.kill()
    command.communicate()
    deadline = time.monotonic() + 60
    while _alive(worker):
        assert time.monotonic() < deadline, f"worker {worker} goes on without its parent"
        time.sleep(0.1)


def _alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to collect it


@pytest.mark.parametrize("tau", [0.05, 0.3])
@pytest.mark.parametrize("top", [1 / 96, 0.6])
def test_bands_from_one_decomposition_equal_those_of_gradient_band(tau, top):
    generator = torch.Generator().manual_seed(3)
    z = gaussian_rows(20, spiked_eigenvalues(96, top), generator=generator)
    contrast = Contrast.paired(z, positives_at_cosine(z, 0.7, generator=generator))
    found = batch_bands(decomposed(contrast), tau)
    options = {
        "plug-in": {"method": "proxy"},
        "per anchor": {"method": "theorem"},
        "certified": {"method": "certified", "directions": 1},
    }
    for name, chosen in options.items():
        band = gradient_band(contrast, tau, **chosen)
        limits = found.bands[name]
        torch.testing.assert_close(found.measured, band.measured, rtol=1e-9, atol=0)
        torch.testing.assert_close(limits.upper, band.upper, rtol=1e-9, atol=0)
        assert limits.mean_lower == pytest.approx(band.mean.lower, rel=1e-9)
        assert limits.mean_upper == pytest.approx(band.mean.upper, rel=1e-9)
        if name == "plug-in":
            assert limits.lower.tolist() == pytest.approx([band.mean.lower] * 40, rel=1e-9)
        else:
            torch.testing.assert_close(limits.lower, band.lower, rtol=1e-9, atol=0)


def test_limits_count_anchors_on_either_side():
    generator = torch.Generator().manual_seed(3)
    z = gaussian_rows(20, spiked_eigenvalues(32, 0.3), generator=generator)
    contrast = Contrast.paired(z, positives_at_cosine(z, 0.7, generator=generator))
    limits = batch_bands(decomposed(contrast), 0.1).bands["per anchor"]
    measured = limits.upper.clone()
    measured[0] *= 1.01
    measured[1:3] = limits.lower[1:3] * 0.99
    assert limits.outside(measured) == (2, 1)


def test_line_fit_finds_slope_interval_and_quality():
    fit = line_fit([0, 1, 2, 3], [1, 3, 5, 7])
    assert (fit.slope, fit.half_width, fit.r_squared) == pytest.approx((2, 0, 1), abs=1e-9)
    noisy = line_fit([0, 1, 2, 3], [1, 3, 4, 8])
    assert noisy.half_width > 0.5
    assert noisy.r_squared < 1
    with pytest.raises(ParameterError, match="3 points"):
        line_fit([0, 1], [0, 1])


# Judges: rows made by hand, or smoke rows with one figure changed, for each direction.


def test_synthetic_band_is_judged_by_its_worst_setting(finished):
    rows = rows_of(finished, "synthetic-band")
    rows = [r | {"below": 0, "above": 0} for r in rows if "example" not in r]
    assert synthetic_band.CLAIM.judge(rows).outcome == REPRODUCED
    plug_in = [r | {"below": r["anchors"] // 2 if _at(r, "plug-in") else 0} for r in rows]
    assert synthetic_band.CLAIM.judge(plug_in).outcome == CONDITIONS
    broken = [r | {"above": 1 if _at(r, "per anchor") else r["below"]} for r in plug_in]
    assert synthetic_band.CLAIM.judge(broken).outcome == NOT


def _at(row, band):
    return (row["band"], row["top"], row["tau"]) == (band, "0.3", 0.1)


@pytest.mark.parametrize(("power", "outcome"), [(2.0, REPRODUCED), (2.3, NOT), (0.8, NOT)])
def test_temperature_law_is_judged_by_the_slope_of_the_printed_setting(power, outcome):
    rows = [
        {"top": top, "cosine": cosine, "tau": tau, "batches": 1, "gradient": 5 * tau**-power,
         "squared_gradient": 1.0, "squared_miss": 0.25, "miss": 0.5}
        for top, cosine in temperature_law.CASES
        for tau in temperature_law.TEMPERATURES
    ]  # fmt: skip
    verdict = temperature_law.CLAIM.judge(rows)
    assert verdict.outcome == outcome
    assert f"slope {power:.2f}" in verdict.measured


def test_correlated_negatives_is_judged_by_inflation_and_coverage():
    def rows(*, outside_weak=0, outside_strong=0, printed_right=False, error=1.0):
        return [
            {"strength": a, "as_printed": printed, "negatives": count, "batches": 1,
             "anchors": 100, "above": 0,
             "outside": outside_weak if a <= 0.02 else outside_strong,
             "squared_mean": (1 / count if printed and not printed_right
                              else error * (1 + (count - 1) * a) / count)}
            for a in correlated_negatives.STRENGTHS
            for count in correlated_negatives.NEGATIVES
            for printed in (False, True)
        ]  # fmt: skip

    judge = correlated_negatives.CLAIM.judge
    assert judge(rows(printed_right=True, outside_strong=10)).outcome == REPRODUCED
    assert judge(rows()).outcome == CONDITIONS
    assert judge(rows(printed_right=True)).outcome == CONDITIONS
    assert judge(rows(outside_weak=6)).outcome == NOT
    assert judge(rows(error=1.1)).outcome == NOT


def test_anisotropy_coverage_needs_both_sides_of_the_threshold():
    def rows(at_six, beyond):
        return [
            {"gap": gap, "batches": 1, "anchors": 100, "below": at_six if gap == 6 else 0,
             "above": beyond if gap > 6 else 0, "plug_in_below": 0, "raw": 16.0, "corrected": 1.0,
             "sigma_hat": 0.1}
            for gap in anisotropy_coverage.GAPS
        ]  # fmt: skip

    judge = anisotropy_coverage.CLAIM.judge
    assert judge(rows(0, 3)).outcome == REPRODUCED
    assert judge(rows(0, 0)).outcome == CONDITIONS
    assert judge(rows(6, 3)).outcome == NOT
    assert judge([row | {"raw": 3e4} for row in rows(0, 3)]).outcome == NOT


def test_variance_band_is_judged_by_any_violation(finished):
    rows = [r | {"violations": 0} for r in rows_of(finished, "variance-band")]
    judge = variance_band.CLAIM.judge
    assert judge(rows).outcome == REPRODUCED
    mixed = [r | {"violations": int(r["kind"] != "grid")} for r in rows]
    assert judge(mixed).outcome == CONDITIONS
    assert judge([r | {"violations": 1} for r in rows]).outcome == NOT


def test_numerical_scale_is_judged_by_both_figures(finished):
    (row,) = rows_of(finished, "numerical-scale")
    assert row["coefficient"] == pytest.approx(3 * 4093 / 4094**2 * 1e4)
    judge = numerical_scale.CLAIM.judge
    assert judge([row]).outcome == REPRODUCED
    assert judge([row | {"coefficient": 7.36}]).outcome == NOT
    assert judge([row | {"ratios": [*row["ratios"][:-1], 160.0]}]).outcome == NOT


def test_trace_update_is_judged_by_update_and_expansion():
    def rows(error, power):
        return [
            {"size": b, "top": 0.3, "unit_error": error, "long_error": 0.0,
             "first_order": b**power}
            for b in trace_update.SIZES
        ]  # fmt: skip

    judge = trace_update.CLAIM.judge
    assert judge(rows(1e-15, -2.0)).outcome == REPRODUCED
    assert judge(rows(1e-15, -1.0)).outcome == CONDITIONS
    assert judge(rows(1e-9, -2.0)).outcome == NOT


@pytest.mark.parametrize("name", ["same_pick", "same_diversity", "threshold_right", "proxy_below"])
def test_one_exception_refutes_the_greedy_rationale(finished, name):
    rows = rows_of(finished, "greedy-rationale")
    assert greedy_rationale.CLAIM.judge(rows).outcome == REPRODUCED
    rows[0] |= {name: rows[0][name] - 1}
    assert greedy_rationale.CLAIM.judge(rows).outcome == NOT


@pytest.mark.parametrize(
    "change", [{"identical": 1.1}, {"branches": 1e-3}, {"outside": 1}, {"sigma_below": 1}]
)
def test_one_failed_check_refutes_p3_sanity(finished, change):
    rows = rows_of(finished, "p3-sanity")
    assert p3_sanity.CLAIM.judge(rows).outcome == REPRODUCED
    rows[0] |= change
    assert p3_sanity.CLAIM.judge(rows).outcome == NOT


@pytest.mark.parametrize(
    ("few", "enough", "outcome"),
    [(1.0, 0.5, REPRODUCED), (2.5, 0.5, CONDITIONS), (2.5, 2.1, NOT)],
)
def test_matrix_concentration_is_judged_by_the_constant_needed(few, enough, outcome):
    rows = [
        {"kind": kind, "ratio": ratio,
         "needed": dict.fromkeys(("dimension", "effective_rank", "bernstein"), needed),
         "coverage": {"bernstein": 1.0}}
        for kind in ("Gaussian", "unit")
        for ratio, needed in ((0.25, few), (4, enough))
    ]  # fmt: skip
    assert matrix_concentration.CLAIM.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("raw", "least", "outcome"), [(3.0, 2.0, REPRODUCED), (9.0, 7.0, CONDITIONS), (50, 49, NOT)]
)
def test_isotropy_floor_is_judged_by_isotropic_rows(finished, raw, least, outcome):
    rows = rows_of(finished, "isotropy-floor")
    rows = [r | ({"raw": raw, "raw_least": least} if r["gap"] == 0 else {}) for r in rows]
    assert isotropy_floor.CLAIM.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [((0.8, 0.75), REPRODUCED), ((0.8, 0.3), CONDITIONS), ((0.95, 0.3), NOT)],
)
def test_pool_returns_is_judged_by_the_share_at_four_batches(shares, outcome):
    share = dict.fromkeys(pool_returns.SELECTORS, 0.5) | {
        "Greedy-64": shares[0], "Pool-P1": shares[1]
    }  # fmt: skip
    rows = [
        {"kind": kind, "selector": name, "factor": factor, "cost": 1.0,
         "rank": 10 + 10 * {1: 0.0, 2: 0.1, 4: share[name], 10: 1.0}[factor]}
        for kind in pool_returns.KINDS
        for name in pool_returns.SELECTORS
        for factor in (1, 2, 4, 10)
    ]  # fmt: skip
    assert pool_returns.CLAIM.judge(rows).outcome == outcome


def test_the_remainder_is_what_the_expansion_leaves_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    z = gaussian_rows(4, spiked_eigenvalues(6, 0.4), generator=generator)
    contrast = Contrast.paired(z, positives_at_cosine(z, 0.6, generator=generator))
    tops = torch.full((8,), 0.5, dtype=torch.float64)
    found = softmax_remainder._measure(contrast, tops, 0.2)
    violations, needed = 0, []
    for i in range(8):
        others = [j for j in range(8) if j not in (i, (i + 4) % 8)]
        logits = contrast.anchors[others] @ contrast.anchors[i] / 0.2
        centred = logits - logits.mean()
        remainder = logits.softmax(0) - 1 / 6 - centred / 6
        violations += int((remainder.abs() > centred**2 / 8).sum())
        needed.append((remainder @ contrast.anchors[others]).square().sum().item() * 0.2**4 / 0.25)
    assert found["entries"] == 48
    assert found["eighth_violations"] == violations > 0
    assert found["most_smoothness"] == pytest.approx(max(needed))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"eighth_violations": 0.0}, REPRODUCED),
        ({"eighth_violations": 1.0}, CONDITIONS),
        ({"eighth_violations": 1.0, "norm_violations": 1.0}, NOT),
        ({"eighth_violations": 0.0, "most_smoothness": 0.2}, NOT),
    ],
)
def test_softmax_expansion_is_judged_by_entries_maximum_and_constant(finished, change, outcome):
    clean = {"norm_violations": 0.0, "most_smoothness": 0.1}
    rows = [row | clean | change for row in rows_of(finished, "softmax-expansion")]
    assert softmax_expansion.CLAIM.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("entries", "boxes", "outcome"),
    [(0.0, 0.0, REPRODUCED), (5.0, 0.0, CONDITIONS), (5.0, 1.0, NOT)],
)
def test_second_order_remainder_is_judged_by_entries_and_boxed_bound(
    finished, entries, boxes, outcome
):
    change = {"half_violations": entries, "box_violations": boxes}
    rows = [row | change for row in rows_of(finished, "second-order-remainder")]
    assert second_order_remainder.CLAIM.judge(rows).outcome == outcome


def test_rank_estimators_are_judged_by_their_largest_difference(finished):
    rows = rows_of(finished, "rank-estimators")
    assert rank_estimators.CLAIM.judge(rows).outcome == REPRODUCED
    rows[2] |= {"error": 1e-6}
    assert rank_estimators.CLAIM.judge(rows).outcome == NOT


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, CONDITIONS),
        ({"outside": 1}, NOT),
        ({"empirical_outside": 1}, NOT),
        ({"ceilings": {"0.0": [2.0], "0.5": [2.1], "1.0": [2.2]}}, REPRODUCED),
    ],
)
def test_the_printed_ceiling_is_judged_by_containment_and_its_constant(finished, change, outcome):
    rows = [row | change for row in rows_of(finished, "printed-ceiling")]
    assert printed_ceiling.CLAIM.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("few", "enough", "outcome"), [(1.0, 1.0, REPRODUCED), (0.5, 1.0, CONDITIONS), (1.0, 0.5, NOT)]
)
def test_the_probable_band_is_judged_by_coverage(few, enough, outcome):
    rows = [
        {"ratio": ratio, "draws": 100, "looser": {"printed": 1.0, "bernstein": 2.0},
         "below": {"printed": 100 * (few if ratio < 1 else enough), "bernstein": 100}}
        for ratio in probable_band.RATIOS
    ]  # fmt: skip
    assert probable_band.CLAIM.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("drawn", "fixed", "outcome"), [(1.0, 1.5, REPRODUCED), (1.0, 16, REPRODUCED), (0.9, 16, NOT)]
)
def test_the_operator_norm_is_judged_by_the_bound(drawn, fixed, outcome):
    rows = [
        {"fixed": one, "dim": 16, "correlation": 0.1, "norm": slack * 0.1 / 16, "alpha": 0.1}
        for one, slack in ((True, fixed), (False, drawn))
    ]
    assert operator_norm.CLAIM.judge(rows).outcome == outcome
