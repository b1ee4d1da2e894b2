"""Beyond the paper: planned epochs against those of other papers, in one run."""

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.pairs import SEEDS, pair_chunk, pair_claim
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided, effect

DATA = ("translations", "code")
PEERS = ("greedy-64", "gcbs", "walk")
POLICIES = ("random", "neighbours", *PEERS)


def chunks(scale: Scale) -> list[Chunk]:
    """Five policies on two data sets, paired by seed."""
    return [
        pair_chunk(scale, seed, data, selector, 64)
        for seed in range(SEEDS[scale])
        for data in DATA
        for selector in POLICIES
    ]


def judge(rows: list[Row]) -> Verdict:
    """Neighbours against every other policy."""
    main: dict[str, Finding | bool] = {}
    measured, notes = [], []
    for data, group in grouped(rows, "data").items():
        groups = grouped(group, "selector")
        for peer in PEERS:
            main[f"{data}: above {peer}"] = effect(facts.gain(groups["neighbours"], groups[peer]))
        measured.append(f"{data}: {facts.gains(groups)}")
        notes += [f"{data}: {name} {facts.reaching(groups, name)}" for name in POLICIES[1:]]
    return decided(main, {}, "; ".join(measured), "; ".join(notes) + ".")


SETTING = "29,000 pairs of each (see planned-batches), n=64, tau=0.07, 1,359 steps"
CLAIM = pair_claim(
    DATA,
    name="planner-peers",
    statement="Planned neighbours end higher than global contrastive batch sampling (reverse "
    "Cuthill-McKee), than random walks on a proximity graph, and than diverse batches.",
    printed="nothing",
    criterion="On translations and on code the 95 % interval of the difference in final MRR "
    "between neighbours and each of the three lies above zero.",
    setting=SETTING,
    minutes=20,
    chunks=chunks,
    judge=judge,
    draw=facts.draw_settings,
)
