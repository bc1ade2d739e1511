"""Relations: one label for two entities of a text (KLUE-RE, TACRED, any JSON with two marked spans).

The entities are marked in the text itself with signs that every tokenizer knows, so that no token has to be learnt
from nothing (Zhou & Chen 2022, "entity marker (punct)"):

    plain   @ Bill @ was born in # Seattle # .
    typed   @ * person * Bill @ was born in # ^ city ^ Seattle # .
    ernie   # Bill # was born in $ Seattle $ .                          as the code of Zhang et al. 2019 has them

A model that reads entities takes those of a column of the file, or its linker's.
All else is classification (tasks/classify.py). The official score is KLUE's and TACRED's: micro F1 over all labels but
"no relation"; beside it KLUE's mean area under the precision-recall curves of the labels (`auprc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from etude.errors import UserError
from etude.graph.entity_links import NamedMention
from etude.models.base import Model
from etude.tasks import classify
from etude.tasks.base import Facts
from etude.tasks.classify import LabelScoring, LabelTask, learn, majority, strata
from etude.tasks.data.entity_columns import mentions_of
from etude.tasks.data.examples import (
    Examples,
    Record,
    checked_text,
    column_of,
    gather,
    label_of,
    short,
    text_of,
    value_of,
)
from etude.tasks.data.marked_text import Sign, insert_signs, move_mentions
from etude.tasks.data.records import FILES, records
from etude.tasks.pooled_head import ExampleRows
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Relation", "Settings", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "one label for two entities of a text (KLUE-RE, TACRED)"
SCORES = "micro F1 without no_relation, area under curves, accuracy, macro F1"
COLUMNS = {
    "text": ("sentence", "text", "token"),
    "subject": ("subject_entity", "subject", "subj"),
    "object": ("object_entity", "object", "obj"),
    "label": ("label", "relation"),
    "entities": ("entities", "ents"),
}
INPUTS: tuple[str, ...] = ()  # a line holds JSON
TEXTS: tuple[str, ...] = ()  # entities have fixed places in the text
PROMPT = None


class Settings(classify.Settings):
    score: classify.ScoreName = Field(
        default="micro_f1", description="the score that chooses the best checkpoint; the task's official one"
    )
    nothing: str | None = Field(default="no_relation", description="the label that micro_f1 leaves out")
    typed: bool = Field(default=False, description="the types of the entities, where the file has them, in the text")
    signs: Literal["punct", "ernie"] = Field(
        default="punct", description="marks around the two entities: @ and #, or # and $"
    )


# around an entity, and around its type: of the subject and of the object
SIGNS = {
    "punct": {"subject": ("@", "*"), "object": ("#", "^")},
    "ernie": {"subject": ("#", "*"), "object": ("$", "^")},
}


class Entity(NamedTuple):
    start: int
    stop: int  # one behind its last character
    kind: str | None
    role: str

    def signs(self, typed: bool, kind: str) -> list[Sign]:
        """What stands before and behind it in the text."""
        around, beside = SIGNS[kind][self.role]
        of_type = f" {beside} {self.kind} {beside}" if typed and self.kind else ""
        return [Sign(self.start, around + of_type), Sign(self.stop, around)]


@dataclass(frozen=True)
class RelationExample:
    text: str
    entities: tuple[Entity, Entity]  # subject and object
    label: str | None = None
    mentions: tuple[NamedMention, ...] | None = None  # entities of a graph in the text; None: nobody said

    def normalised(self, normalise: Callable[[str], str]) -> RelationExample:
        """The same over the text as a tokenizer reads it, whose characters may be fewer."""
        text = normalise(self.text)
        if text == self.text:
            return self

        def move(place: int) -> int:
            return len(normalise(self.text[:place]))

        first, second = (entity._replace(start=move(entity.start), stop=move(entity.stop)) for entity in self.entities)
        mentions = self.mentions
        if mentions is not None:
            mentions = tuple(NamedMention(move(start), move(end), name) for start, end, name in mentions)
        return replace(self, text=text, entities=(first, second), mentions=mentions)

    def signs(self, typed: bool, kind: str) -> list[Sign]:
        """Those of both entities, in their order in the text."""
        ordered = sorted(self.entities, key=lambda entity: entity.start)
        return [sign for entity in ordered for sign in entity.signs(typed, kind)]

    def marked(self, typed: bool, kind: str) -> str:
        """The text with the signs in it; the rest of it as it is."""
        return insert_signs(self.text, self.signs(typed, kind))


# --- reading ----------------------------------------------------------------------------------------


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> RelationExample:
    if isinstance(record.get("token"), list) and "subj_start" in record:
        text, entities = _of_words(record, where)
    else:
        text = text_of(record, column_of(record, "text", columns, COLUMNS["text"]), where)
        entities = (_entity(record, text, "subject", columns, where), _entity(record, text, "object", columns, where))
    first, second = sorted(entities, key=lambda entity: entity.start)
    if second.start < first.stop:
        raise UserError(f"{where}: the two entities overlap, so they cannot be marked. Leave the example out.")
    label = column_of(record, "label", columns, COLUMNS["label"])
    mentions = mentions_of(record, column_of(record, "entities", columns, COLUMNS["entities"]), text, where)
    return RelationExample(text, entities, label_of(record, label, where) if labelled else None, mentions)


def _entity(record: Record, text: str, role: str, columns: Mapping[str, str], where: str) -> Entity:
    """KLUE's {"word", "start_idx", "end_idx", "type"}, the end being the last character; or "start" and "end"."""
    column = column_of(record, role, columns, COLUMNS[role])
    value = value_of(record, column, where)
    inclusive = isinstance(value, dict) and "end_idx" in value
    start, end = (
        (value.get("start_idx", value.get("start")), value.get("end_idx", value.get("end")))
        if isinstance(value, dict)
        else (None, None)
    )
    if type(start) is not int or type(end) is not int:  # true and false are none
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not an object with word, start and end.")
    stop = end + 1 if inclusive else end
    if not 0 <= start < stop <= len(text):
        raise UserError(f"{where}: the entity of '{column}' reaches from {start} to {stop}, outside the text.")
    word = value.get("word")
    if word is not None and text[start:stop] != word:
        raise UserError(
            f"{where}: the entity {short(word)} is not at its offset {start}, where the text has "
            f"{short(text[start:stop])}. Correct it, or leave the example out."
        )
    return Entity(start, stop, value.get("type"), role)


def _of_words(record: Record, where: str) -> tuple[str, tuple[Entity, Entity]]:
    """TACRED: a list of words, and entities by the numbers of their first and last word."""
    words = [checked_text(word, "token", where) for word in record["token"]]
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + 1)
    entities = []
    for role, name in (("subject", "subj"), ("object", "obj")):
        first, last = record.get(f"{name}_start"), record.get(f"{name}_end")
        if type(first) is not int or type(last) is not int or not 0 <= first <= last < len(words):
            raise UserError(f"{where}: {name}_start and {name}_end are {first} and {last}, not places of two words.")
        entities.append(Entity(starts[first], starts[last + 1] - 1, record.get(f"{name}_type"), role))
    return " ".join(words), (entities[0], entities[1])


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[RelationExample]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


# --- the task ---------------------------------------------------------------------------------------


class RelationScoring(LabelScoring[RelationExample]):
    def __init__(self, settings: Settings, labels: Sequence[str]) -> None:
        super().__init__(settings, labels)
        self.typed, self.signs = settings.typed, settings.signs

    def texts(self, item: RelationExample) -> tuple[str, ...]:
        return (item.marked(self.typed, self.signs),)


def scoring(settings: Settings, facts: Facts) -> RelationScoring:
    return RelationScoring(settings, facts["labels"])


class Relation(LabelTask[RelationExample]):
    settings: Settings

    def unlabelled_rows(self, examples: Examples[RelationExample]) -> ExampleRows:
        """Rows of the texts as the tokenizer reads them, in which a linker counts characters."""
        items = [item.normalised(self.pooled.tokenizer.normalise) for item in examples]
        return super().unlabelled_rows(replace(examples, items=items))

    def mentions(self, item: RelationExample) -> list[Sequence[NamedMention] | None]:
        entities = self.pooled.linked_mentions(item.text) if item.mentions is None else item.mentions
        return [move_mentions(item.text, item.signs(self.settings.typed, self.settings.signs), entities)]


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Relation:
    return Relation(settings, model, tokenizer, scoring(settings, facts))
