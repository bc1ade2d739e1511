"""`etude distill`: a recipe, a corpus and a teacher become a run (objectives/distill.py, pretraining/student.py)."""

from __future__ import annotations

from pathlib import Path

from etude.errors import UserError
from etude.pretraining.loop import Learner
from etude.pretraining.pretrain import resume, start_run
from etude.pretraining.restart import is_own_run, is_restarted
from etude.pretraining.setup import resolve_recipe
from etude.pretraining.student import build_student, load_teacher, teacher_file
from etude.recipes.document import Overrides
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.staging import refuse_existing
from etude.text.corpus.corpus import Corpus


def distill(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus,
    out: str | Path,
    *,
    teacher: str | Path,
    quiet: bool = False,
    overrides: Overrides = (),
) -> Run:
    """Pre-train with a teacher, a run of a masked model; `overrides` may hold `distill.temperature` and its kind."""
    opened = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    if not is_restarted():
        refuse_existing(Path(out))
    student = resolve_recipe(recipe, opened, overrides, distilled=True)
    if is_own_run(Path(out), student):
        return resume(out, quiet=quiet)
    if student.train.steps is None and student.train.tokens is None and student.train.epochs is None:
        raise UserError("The budget of a distillation is in steps, tokens or epochs: set train.steps.")
    if not Path(teacher).is_dir():
        raise UserError(f"There is no folder {teacher}. A teacher is a run; 'etude import' makes one of a model.")

    def build() -> tuple[Learner, dict[str, str]]:
        loaded, fingerprint = load_teacher(teacher, opened)
        return build_student(student, opened, loaded), teacher_file(teacher, fingerprint)

    return start_run(student, opened, out, build, quiet)
