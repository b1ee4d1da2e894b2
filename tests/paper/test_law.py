"""The picture of gain against hardness, from stored rows."""

import json

import pytest

from eigenbatch_paper import law


def store(folder, claim, rows):
    (folder / claim).mkdir(parents=True)
    lines = [json.dumps({"chunk": str(i), "rows": [row]}) for i, row in enumerate(rows)]
    (folder / claim / "rows.jsonl").write_text("\n".join(lines))


def rows(miss, gains, **settings):
    return [
        {"selector": name, "seed": seed, "mrr": [0.1, 0.5 + gain + 1e-4 * seed], "miss": miss,
         "solved": 1 - miss / 2} | settings
        for name, gain in {"random": 0.0, **gains}.items() for seed in range(3)
    ]  # fmt: skip


def test_every_setting_is_a_point_for_each_policy(tmp_path, capsys):
    easy = {"neighbours": 0.05, "greedy-64": -0.01}
    store(tmp_path, "planned-batches", rows(0.03, easy, data="code", batch_size=64))
    store(tmp_path, "gap-rule", rows(0.02, {"neighbours": 0.01}, data="packages", batch_size=256))
    store(tmp_path, "miss-law", rows(0.6, {"neighbours": 0.0}, tau=0.3))
    store(tmp_path, "copied-pairs", rows(0.04, {"neighbours": -0.02}, data="tripled"))
    law.main([str(tmp_path), str(tmp_path / "law.png")])
    printed = capsys.readouterr().out
    assert "| code, n = 64 | neighbours | 1.5% | 0.03 | +5.0 (+5.0 to +5.0) | 3 |" in printed
    assert "| code, n = 64 | greedy-64 | 1.5% | 0.03 | -1.0 (" in printed
    assert "| packages, n = 256 | neighbours | 1.0% | 0.02 | +1.0 (" in printed
    assert "| translations, n = 64, tau = 0.3 | neighbours | 30.0% | 0.60 | +0.0" in printed
    assert "| translations, tripled | neighbours | 2.0% | 0.04 | -2.0 (-2.0 to -2.0) |" in printed
    assert (tmp_path / "law.png").stat().st_size > 10_000


def test_pictures_without_a_reading_are_left_out(tmp_path, capsys):
    row = {"data": "folder", "selector": "random", "seed": 0, "final_accuracy": 0.4, "readings": {}}
    store(tmp_path, "similar-batches", [row, row | {"selector": "neighbours"}])
    assert law.points(law.settings(tmp_path)) == []
    with pytest.raises(SystemExit, match="2"):
        law.main([str(tmp_path), str(tmp_path / "law.png")])
    assert f"no runs that compare policies under {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "law.png").exists()


def test_a_picture_run_that_two_claims_have_counts_once(tmp_path):
    readings = {"solved_share": [0.5], "miss": [0.8]}
    runs = [
        {"data": "folder", "selector": name, "seed": seed, "final_accuracy": gain + seed / 1e4,
         "readings": readings}
        for name, gain in (("random", 0), ("neighbours", 0.01)) for seed in range(3)
    ]  # fmt: skip
    store(tmp_path, "similar-batches", runs)
    store(tmp_path, "picture-batches", runs)
    (point,) = law.points(law.settings(tmp_path))
    assert point.gain.pairs == 3
