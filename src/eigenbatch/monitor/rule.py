"""A rule: when a finding is made, what it is called, and its place among the others."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.diagnosis import Diagnosis, Severity

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading

Subject = TypeVar("Subject", "Reading", Cloud)

SYMPTOMS = "symptoms"
"""In `explains`: every rule marked as a symptom."""


class Answer(NamedTuple):
    """What a check found: how bad it is, the numbers behind it and what to do."""

    severity: Severity
    evidence: str
    advice: str


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One finding. It is written above the function that checks for it.

        @partial(ReadingRule, "few negatives", place=160, explains=(SYMPTOMS,))
        def few_negatives(reading: "Reading") -> Answer | None: ...

    Args:
        name: name of the finding.
        check: the answer, or None when there is nothing to say.
        place: findings of one severity are listed by this number, causes before symptoms.
        untrained: any encoder may show it in its first steps; it is a remark then.
        symptom: a consequence that many causes have.
        explains: names of findings that are remarks beside this one; `SYMPTOMS` for all symptoms.
        lasting: readings in a row before it is a warning.
        remark: never a warning; it cannot stop a run.
    """

    name: str
    check: Callable[[Subject], Answer | None]
    _: KW_ONLY
    place: int
    untrained: bool = False
    symptom: bool = False
    explains: tuple[str, ...] = ()
    lasting: int = limit.LASTING
    remark: bool = False

    def __call__(self, subject: Subject) -> Diagnosis | None:
        """The finding, if there is one."""
        answer = self.check(subject)
        return None if answer is None else Diagnosis(name=self.name, **answer._asdict())


class ReadingRule(Rule["Reading"]):
    """A rule about one reading."""


class CloudRule(Rule[Cloud]):
    """A rule that needs embeddings only, no positives."""
