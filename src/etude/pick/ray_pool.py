"""A Ray cluster in the place of worker processes: pre-trainings and fine-tunings of a pick run on its machines.

What takes seconds (bags of words, linear heads) stays in the process of the pick. All machines must see the folders of
the pick under the same paths; results lie in its store, under keys that do not say where they were computed. A piece of
work whose machine is lost is done again on another one, from its last checkpoint, as long as there is time.

Machines share no monotonic clock: a deadline travels as a time of day, so clocks must agree to about a second.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from etude.errors import UserError, WriteError
from etude.extras import require
from etude.pick.worker import answer_job
from etude.pick.worker_pool import GRACE, Job, WorkerPool
from etude.study.executors import RETRIES, connect_ray, list_machines


class RayPool(WorkerPool):
    """As many pieces of work at once as the cluster has CPUs, or GPUs for a device of cuda."""

    shares_device = False

    def __init__(self, folder: Path, device: str) -> None:
        require("ray", "--on ray")
        import ray

        self.ray: Any = ray
        self.owns_cluster = not ray.is_initialized()
        if self.owns_cluster:
            connect_ray(ray)
        self.needs = {"num_cpus": 1, "num_gpus": int(device.startswith("cuda"))}
        name = "GPU" if self.needs["num_gpus"] else "CPU"
        slots = int(ray.cluster_resources().get(name, 0))
        if not slots:
            self._disconnect()
            raise UserError(
                f"--on ray: the cluster has no {name}. Start a machine with one, or choose another --device."
            )
        super().__init__(slots, folder)

    def _run(self, job: Job) -> str | None:
        deaths = 0
        while (left := job.deadline - time.monotonic()) > 0:
            machines = list_machines(self.ray)
            # Ray itself cannot tell a machine that went from work that ends its process
            task = self.ray.remote(run_remote).options(**self.needs, max_retries=0)
            reply = task.remote(_dump(job, left), str(Path.cwd()))
            try:
                answer = json.loads(self.ray.get(reply, timeout=left + GRACE))
            except self.ray.exceptions.GetTimeoutError:
                self.ray.cancel(reply, force=True)
                return "it did not end by its deadline"
            except Exception as error:  # a node that went, a worker that was killed: Ray has many classes for it
                is_lost = type(error).__name__ == "NodeDiedError" or not machines <= list_machines(self.ray)
                deaths += not is_lost
                if deaths > RETRIES:
                    return f"Ray lost it: {str(error).strip().splitlines()[-1]}"
                continue
            if answer["unwritten"]:  # the disk's failure ends the pick; it is no failure of the contender
                raise WriteError(answer["error"])
            message: str | None = answer["error"]
            return message
        return "there was no time for it"

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def _disconnect(self) -> None:
        if self.owns_cluster:
            self.ray.shutdown()


def _dump(job: Job, left: float) -> str:
    return json.dumps({**vars(job), "store": str(job.store.resolve()), "deadline": time.time() + left})


def run_remote(text: str, folder: str) -> str:
    """Do a piece of work on a machine of the cluster, in the folder of the pick's command; all is JSON text."""
    job = json.loads(text)
    if not Path(job["store"]).is_dir():
        error = f"{job['store']} is not on {os.uname().nodename}: all machines must see the folder of the pick."
        return json.dumps({"error": error, "unwritten": True})
    os.chdir(folder)
    job["deadline"] += time.monotonic() - time.time()
    return json.dumps(answer_job(job))
