"""Etude: learn language from plain text first and the task second.

    corpus = etude.prepare("books/*.txt", out="data/books", tokenizer="bpe:16000")
    run = etude.pretrain("bert-small", corpus, out="runs/bert", settings={"train.steps": 10_000})
    model = etude.load("runs/bert")
    tuned = etude.finetune("runs/bert", "classify", train="train.csv", dev="dev.csv", out="runs/bert-reviews")
    report = etude.study("studies/mlm-vs-electra.yaml", budget="10m")

Each verb is a function of `etude.verbs`, and a command: `etude.pretrain` and `etude pretrain` take the same options.
Everything heavy is imported when it is first used.
"""

from __future__ import annotations

from etude import startup  # noqa: F401 (before all else: from here on Ctrl-C ends a command in one line)

# isort: split
import importlib
from typing import TYPE_CHECKING, Any

from etude.errors import UserError
from etude.train import malloc, openmp
from etude.verbs import show
from etude.verbs.callable_package import make_callable
from etude.verbs.comparison import demo, plan_study
from etude.verbs.corpus import prepare
from etude.verbs.graph import prepare_graph
from etude.verbs.hub import export, import_
from etude.verbs.inference import evaluate, features, fill, generate, load, perplexity, predict, translate
from etude.verbs.pretraining import bench, check, distill, pretrain, resume
from etude.verbs.transfer import augment, finetune, finetune_suite, prompt
from etude.verbs.verify import verify

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.inference.baseline_model import BaselineModel
    from etude.inference.fill import Guess
    from etude.inference.generation import Continuation
    from etude.inference.graph_model import GraphModel
    from etude.inference.model import LoadedModel
    from etude.inference.perplexity import Perplexity
    from etude.inference.task_model import TaskModel
    from etude.inference.translation import Translation
    from etude.pick.pick import PickResult
    from etude.pretraining.bench import Bench
    from etude.pretraining.check import Check
    from etude.pretraining.cluster_check import ClusterCheck
    from etude.pretraining.training_batch import TrainingBatch
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.study.runner import Report
    from etude.tasks.bootstrap import Score
    from etude.text.corpus.corpus import Corpus
    from etude.text.tokenizer.tokenizer import Tokenizer
    from etude.transfer.prompt import PromptResult
    from etude.verbs.catalog import RecipeInfo, TaskCatalog, recipes, tasks
    from etude.verbs.comparison import StudyPlan, pick, study
    from etude.verbs.corpus import world
    from etude.verbs.hub import ModelExport, ModelImport
    from etude.verbs.inference import FeatureFile
    from etude.verbs.serving import serve
    from etude.verbs.task_run import SuiteRun, TaskRun
    from etude.verbs.transfer import AugmentCounts
    from etude.verbs.verify import Verified
    from etude.view.attention import Attention
    from etude.view.coverage import Coverage
    from etude.view.heads import HeadReport
    from etude.view.mix import Mix
    from etude.view.paths import PathExplanation
    from etude.view.word_scores import Analogies, Similarity
    from etude.world import World

    __version__: str

TYPES = {  # what the verbs take and return, and the module it is in
    "Analogies": "etude.view.word_scores",
    "HeadReport": "etude.view.heads",
    "Attention": "etude.view.attention",
    "AugmentCounts": "etude.verbs.transfer",
    "BaselineModel": "etude.inference.baseline_model",
    "Bench": "etude.pretraining.bench",
    "Check": "etude.pretraining.check",
    "ClusterCheck": "etude.pretraining.cluster_check",
    "Continuation": "etude.inference.generation",
    "Corpus": "etude.text.corpus.corpus",
    "Coverage": "etude.view.coverage",
    "FeatureFile": "etude.verbs.inference",
    "Graph": "etude.graph.graph",
    "GraphModel": "etude.inference.graph_model",
    "Guess": "etude.inference.fill",
    "LoadedModel": "etude.inference.model",
    "Mix": "etude.view.mix",
    "ModelExport": "etude.verbs.hub",
    "ModelImport": "etude.verbs.hub",
    "PathExplanation": "etude.view.paths",
    "Perplexity": "etude.inference.perplexity",
    "PickResult": "etude.pick.pick",
    "PromptResult": "etude.transfer.prompt",
    "Recipe": "etude.recipes.schema",
    "RecipeInfo": "etude.verbs.catalog",
    "Report": "etude.study.runner",
    "Run": "etude.runs.run",
    "Score": "etude.tasks.bootstrap",
    "Similarity": "etude.view.word_scores",
    "StudyPlan": "etude.verbs.comparison",
    "SuiteRun": "etude.verbs.task_run",
    "TaskCatalog": "etude.verbs.catalog",
    "TaskModel": "etude.inference.task_model",
    "TaskRun": "etude.verbs.task_run",
    "Tokenizer": "etude.text.tokenizer.tokenizer",
    "TrainingBatch": "etude.pretraining.training_batch",
    "Translation": "etude.inference.translation",
    "Verified": "etude.verbs.verify",
    "World": "etude.world",
}
__all__ = [
    "Analogies",
    "Attention",
    "AugmentCounts",
    "BaselineModel",
    "Bench",
    "Check",
    "ClusterCheck",
    "Continuation",
    "Corpus",
    "Coverage",
    "FeatureFile",
    "Graph",
    "GraphModel",
    "Guess",
    "HeadReport",
    "LoadedModel",
    "Mix",
    "ModelExport",
    "ModelImport",
    "PathExplanation",
    "Perplexity",
    "PickResult",
    "PromptResult",
    "Recipe",
    "RecipeInfo",
    "Report",
    "Run",
    "Score",
    "Similarity",
    "StudyPlan",
    "SuiteRun",
    "TaskCatalog",
    "TaskModel",
    "TaskRun",
    "Tokenizer",
    "TrainingBatch",
    "Translation",
    "UserError",
    "Verified",
    "World",
    "augment",
    "bench",
    "check",
    "demo",
    "distill",
    "evaluate",
    "export",
    "features",
    "fill",
    "finetune",
    "finetune_suite",
    "generate",
    "import_",
    "load",
    "perplexity",
    "pick",
    "plan_study",
    "predict",
    "prepare",
    "prepare_graph",
    "pretrain",
    "prompt",
    "recipes",
    "resume",
    "serve",
    "show",
    "study",
    "tasks",
    "translate",
    "verify",
    "world",
]  # fmt: skip

malloc.configure_mimalloc()
openmp.configure_openmp()

# These verbs are also packages: `etude.study("x.yaml")` runs a study, `etude.study.runner` is a module.
for _name, _module in {
    "pick": "comparison",
    "recipes": "catalog",
    "serve": "serving",
    "study": "comparison",
    "tasks": "catalog",
    "world": "corpus",
}.items():
    make_callable(f"etude.{_name}", getattr(importlib.import_module(f"etude.verbs.{_module}"), _name))


def __getattr__(name: str) -> Any:
    """The version, and the types of results, which are loaded when they are first named."""
    if name == "__version__":
        from importlib.metadata import version

        return version("etude")
    if name in TYPES:
        return getattr(importlib.import_module(TYPES[name]), name)
    raise AttributeError(f"module 'etude' has no attribute '{name}'")


def __dir__() -> list[str]:
    """What completion offers: the verbs and types, not what this file imports for itself."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})
