"""Beyond the paper: the rule of Auto on data that had no part in its making."""

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.pairs import UNSEEN, pair_chunks, pair_claim
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided, mean_at_least

POLICIES = ("random", "neighbours", "auto")


def chunks(scale: Scale) -> list[Chunk]:
    """Three policies at two batch sizes on three data sets, paired by seed."""
    return pair_chunks(scale, UNSEEN, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Auto against Random, and against the better of random batches and neighbours."""
    main: dict[str, Finding | bool] = {}
    rest: dict[str, Finding | bool] = {}
    measured, notes = [], []
    for (data, n), group in grouped(rows, "data", "batch_size").items():
        groups = grouped(group, "selector")
        auto, hard = (facts.gain(groups[p], groups["random"]) for p in ("auto", "neighbours"))
        name = f"{data}, n={n}"
        main[f"{name}: auto does not lose"] = auto.high >= 0 if auto.enough else "open"
        rest[f"{name}: auto is within 0.5 points of the better"] = mean_at_least(
            auto, max(0.0, hard.mean) - 0.005
        )
        measured.append(f"{name}: {facts.gains(groups)}")
        notes.append(f"{name}: neighbours {facts.reaching(groups)}")
    return decided(main, rest, "; ".join(measured), "; ".join(notes) + ".")


SETTING = (
    "29,000 messages of the programs of a Linux machine, English to Spanish and to Russian, and "
    "29,000 short and long descriptions of Debian packages; otherwise as planned-batches"
)
CLAIM = pair_claim(
    UNSEEN,
    name="gap-rule",
    statement="On data that had no part in the making of its rule, Auto does not lose to random "
    "batches, and is close to the better of random batches and neighbours.",
    printed="nothing",
    criterion="On three data sets, at n=64 and n=256, no 95 % interval of Auto's gain over Random "
    "in final MRR lies below 0; and its mean gain is at most 0.5 points below the larger of zero "
    "and that of neighbours.",
    setting=SETTING,
    minutes=35,
    chunks=chunks,
    judge=judge,
    draw=facts.draw_settings,
)
