from eigenbatch.runs.findings import episodes, worth_saying


def finding(name, severity, evidence, advice="what to do"):
    return {"name": name, "severity": severity, "evidence": evidence, "advice": advice}


def reading(step, *found):
    return float(step), [finding(name, severity, f"at {step}") for name, severity in found]


def spans(found):
    return [(one.name, one.severity, one.first, one.last, one.readings) for one in found]


def test_consecutive_readings_of_one_finding_are_one_episode():
    found = episodes(
        [reading(s, ("flat", "warning") if s < 30 or s > 60 else ("healthy", "info"))
         for s in range(0, 100, 10)]
    )  # fmt: skip
    assert spans(found) == [
        ("flat", "warning", 0, 20, 3),
        ("healthy", "info", 30, 60, 4),
        ("flat", "warning", 70, 90, 3),
    ]
    assert (found[0].evidence, found[0].last_evidence) == ("at 0", "at 20")


def test_a_finding_that_gets_worse_begins_a_new_episode():
    found = episodes([reading(1, ("flat", "info")), reading(2, ("flat", "critical"))])
    assert [one.severity for one in found] == ["info", "critical"]


def test_a_flickering_finding_is_joined_within_a_hundredth_of_the_run():
    flicker = [reading(s, *([("flat", "warning")] if s % 2 else [])) for s in range(1000)]
    assert spans(episodes(flicker)) == [("flat", "warning", 1, 999, 500)]


def test_malformed_findings_are_passed_over():
    odd = [None, 3, "text", [None, 4, {}, {"name": "x", "severity": "terrible"}], {"name": "x"}]
    found = episodes([(float(step), one) for step, one in enumerate(odd)])
    assert found == ()


def test_each_finding_worth_saying_is_listed_once_the_most_severe_first():
    readings = [
        reading(1, ("few negatives", "warning"), ("healthy", "info")),
        reading(2),
        reading(3, ("few negatives", "warning"), ("collapsing", "critical")),
    ]
    assert [one.name for one in worth_saying(readings)] == ["collapsing", "few negatives"]
    assert worth_saying([reading(1, ("healthy", "info"))]) == []
