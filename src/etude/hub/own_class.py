"""Runs that no class of `transformers` can hold, exported with one that opens them by this package.

Two towers, word vectors, a biLSTM, a CRF, multiple choice over the mean of the tokens: of these transformers has no
model, or no head. Such a run is written as it is, without what only training needs, beside one Python file with a class
that reads it:

    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)
    model.predict(["a text"])

It needs this package, and says so. What has a class there, or can be written as a head of its own over an encoder that
has (hub/readout.py), is exported so instead.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from etude.runs.checksums import write_checksums
from etude.runs.model_card import cut_commands
from etude.runs.run import METRICS, MODEL_CARD, TASK, Run
from etude.runs.source import ORIGIN
from etude.runs.staging import staged_folder
from etude.runs.task_plan import ExampleFile, Plan
from etude.text.run_checksums import verify_checksums
from etude.train import checkpoint

FILE_NAME = "modeling_etude.py"
ONLY_HERE = {METRICS, ORIGIN, TASK, "config.json", "distill.yaml"}  # of training, or written anew
CODE = '''"""A fine-tuned model of Etude behind the interface of transformers; pip install etude.

    from transformers import AutoModel
    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)
    model.predict(["a text", "another"])
"""

from transformers import PretrainedConfig, PreTrainedModel


class EtudeConfig(PretrainedConfig):
    model_type = "etude_run"


class EtudeModel(PreTrainedModel):
    config_class = EtudeConfig

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *arguments, config=None, **others):
        import etude

        model = cls(config or EtudeConfig.from_pretrained(pretrained_model_name_or_path))
        model.opened = etude.load(str(pretrained_model_name_or_path))
        return model.eval()

    def predict(self, inputs):
        """Answers to texts, or to records of the task's columns."""
        return self.opened.predict(inputs)

    def forward(self, inputs):
        return self.predict(inputs)
'''


USAGE = f"""
## Opening it

No class of transformers has this model, so {FILE_NAME} holds one, which needs the package etude:

    from transformers import AutoModel
    model = AutoModel.from_pretrained("FOLDER", trust_remote_code=True)
    model.predict(["a text"])
"""


def usage_lines(folder: Path) -> tuple[str, ...]:
    """How an exported folder is opened, for a terminal."""
    return (
        f"No class of transformers has this model, so {FILE_NAME} holds one, which needs the package etude:",
        "  from transformers import AutoModel",
        f'  model = AutoModel.from_pretrained("{folder}", trust_remote_code=True)',
        '  model.predict(["a text"])',
    )


def export_with_own_class(run: Run | str | Path, out: str | Path) -> None:
    """Write a fine-tuned run with a class of its own into the new folder `out`; its card says how it is opened."""
    run = run if isinstance(run, Run) else Run.open(run)
    verify_checksums(run.folder)  # damaged weights would leave with checksums of their own
    plan, card = Plan.read(run.folder), run.folder / MODEL_CARD
    config = {
        "architectures": ["EtudeModel"],
        "model_type": "etude_run",
        "auto_map": {"AutoConfig": "modeling_etude.EtudeConfig", "AutoModel": "modeling_etude.EtudeModel"},
        "task": plan.kind,
    }
    with staged_folder(Path(out)) as staging:
        for path in sorted(run.folder.iterdir()):
            if path.is_file() and path.name not in ONLY_HERE and not path.name.startswith("."):
                shutil.copyfile(path, staging / path.name)
        checkpoint.write_text(staging / TASK, _without_paths(plan).dump())
        checkpoint.write_text(staging / FILE_NAME, CODE)
        checkpoint.write_text(staging / "config.json", json.dumps(config, indent=1) + "\n")
        checkpoint.write_text(
            staging / MODEL_CARD, (cut_commands(card.read_text(encoding="utf-8")) if card.is_file() else "") + USAGE
        )
        write_checksums(staging)


def _without_paths(plan: Plan) -> Plan:
    """The plan with the names of its files alone: where they lay is nobody's business, and not there any more."""
    dev = None if plan.dev is None else _without_folder(plan.dev)
    return replace(plan, base=Path(plan.base).name, examples=_without_folder(plan.examples), dev=dev)


def _without_folder(file: ExampleFile) -> ExampleFile:
    return replace(file, path=Path(file.path).name)
