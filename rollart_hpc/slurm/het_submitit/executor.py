"""The executor: components in, one het job out."""

from __future__ import annotations

import logging
import pickle
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import msgspec
from submitit.core.core import Job
from submitit.core.utils import DelayedSubmission, FailedSubmissionError, JobPaths
from submitit.slurm.slurm import SlurmExecutor

from rollart_hpc.errors import NoSlurmError, SlurmError
from rollart_hpc.slurm.commands import Answer, ask_slurm, run_slurm
from rollart_hpc.slurm.het_submitit import parameters as options
from rollart_hpc.slurm.het_submitit.batch_script import ComponentStep, make_batch_script
from rollart_hpc.slurm.het_submitit.component import Component
from rollart_hpc.slurm.het_submitit.job import ComponentJob, HetJob
from rollart_hpc.slurm.het_submitit.paths import HetJobPaths, ScriptJobPaths, batch_log
from rollart_hpc.slurm.het_submitit.script_job import ScriptJob

_log = logging.getLogger("submitit")
_SBATCH_DEADLINE_S = 120.0
AnyJob = TypeVar("AnyJob", bound=HetJob)


class SubmissionRefusedError(SlurmError, FailedSubmissionError):
    """sbatch refused the job; the text has its own words whole. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A component that is ready to be submitted."""

    step: ComponentStep
    pickled: bytes

    @property
    def num_tasks(self) -> int:
        return options.num_tasks(self.step.parameters)


class HetSlurmExecutor(SlurmExecutor):
    """submitit's Slurm executor for het jobs, known to AutoExecutor as ``hetslurm``.

    `submit` and its like make jobs of one component; there are no job arrays, so each is a job. `submit_components`
    makes one het job, `submit_script` one of a batch script that is ready.
    """

    job_class: type[ComponentJob[Any]] = ComponentJob  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def affinity(cls) -> int:
        """Below the stock executor's, so that AutoExecutor's own choice stays as it is."""
        return -1 if shutil.which("srun") is None else 1

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return (super()._valid_parameters() - options.NOT_SUPPORTED) | {"stop_on_failure"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        given = self._by_sbatch_names(kwargs)
        options.check_names(given, self._valid_parameters())
        self.parameters.update(options.read_values(given))

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in params.items() if value is not None}
        taken_back = {self._equivalence_dict().get(name, name): None for name in params if name not in given}
        if "mem_gb" in given:
            options.check_memory(given["mem_gb"])
        return {**taken_back, **super()._convert_parameters(given)}

    def submit_components(self, components: Sequence[Component]) -> HetJob:
        """Submits one job with these components, the batch script on the first node of the first one.

        Raises:
            SubmissionRefusedError: sbatch refused, in its own words.
            NoSlurmError: there is no Slurm here, or its controller does not answer.
            ValueError: a name or an option is wrong.
        """
        names = [component.name for component in components]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"the components are {names}; give at least one, each with a name of its own")
        parts = [self._prepare(component, self.folder / component.name) for component in components]
        job_id, warnings = self._submit_parts(parts)
        job = HetJob(self.folder, job_id, components=dict(zip(names, (part.num_tasks for part in parts), strict=True)))
        job.warnings = warnings
        return job

    def submit_script(
        self,
        text: str,
        *,
        component_names: Sequence[str] = (),
        job_class: type[AnyJob] = ScriptJob,  # pyright: ignore[reportArgumentType]
    ) -> AnyJob:
        """Submits a finished batch script, unchanged.

        ``component_names`` are those of its components, in its order; ``job_class`` knows where its state and its
        results are to be read when the queue is not enough. Only the script and this list are written to the folder.

        Raises:
            SubmissionRefusedError, NoSlurmError: see `submit_components`.
        """
        job_id, warnings = self._sbatch(text)
        sizes = dict.fromkeys(component_names, 1)
        self._keep_or_cancel(job_id, lambda: _write_job(ScriptJobPaths(self.folder, job_id), text, sizes))
        job_class.watcher.note_submission(job_id)
        job = job_class(self.folder, job_id, components=sizes)
        job.warnings = warnings
        return job

    def _internal_process_submissions(self, delayed_submissions: Sequence[DelayedSubmission]) -> list[Job[Any]]:
        jobs: list[Job[Any]] = []
        for delayed in delayed_submissions:
            name = str(self.parameters.get("job_name", options.DEFAULTS["job_name"]))
            part = self._pickle(delayed, name, self.folder, options.merge(self.parameters, {}))
            job_id, warnings = self._submit_parts([part])
            job: ComponentJob[Any] = self.job_class(self.folder, job_id, range(part.num_tasks))
            job.warnings = warnings
            jobs.append(job)
        return jobs

    def _prepare(self, component: Component, folder: Path) -> _Part:
        try:
            own = self._by_sbatch_names(component.parameters)
            options.check_names(own, self._valid_parameters() - options.JOB_WIDE)
            own = options.read_values(own)
        except ValueError as error:
            raise ValueError(f"component {component.name!r}: {error}") from None
        assert component.function is not None
        delayed = DelayedSubmission(component.function, *component.args, **component.kwargs)
        return self._pickle(delayed, component.name, folder, options.merge(self.parameters, own))

    def _by_sbatch_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """submitit's own names, such as timeout_min, by sbatch's; the others as they are."""
        shared = {name: value for name, value in given.items() if name in self._equivalence_dict()}
        rest = {name: value for name, value in given.items() if name not in shared}
        return {**self._convert_parameters(shared), **rest}

    def _pickle(self, delayed: DelayedSubmission, name: str, folder: Path, parameters: dict[str, object]) -> _Part:
        delayed.set_timeout(options.limit_minutes(parameters), self.max_num_timeout)
        pickled = cloudpickle.dumps(delayed, pickle.HIGHEST_PROTOCOL)
        if len(pickled) > self.max_pickle_size_gb * 2**30:
            raise RuntimeError(
                f"component {name!r}: its function and arguments take {len(pickled) / 2**30:.2f} GB pickled, more than "
                f"{self.max_pickle_size_gb} GB; pass paths instead of data, or set executor.max_pickle_size_gb"
            )
        return _Part(step=ComponentStep(name=name, folder=folder, parameters=parameters), pickled=pickled)

    def _submit_parts(self, parts: Sequence[_Part]) -> tuple[str, tuple[str, ...]]:
        if wrong := [tag for tag in ("%t", "%a", "%A") if tag in str(self.folder)]:
            raise ValueError(f"folder {self.folder}: {wrong[0]} is no folder of one job; only %j, the job's id, can be")
        log = batch_log(self.folder)
        text = make_batch_script([part.step for part in parts], python=self.python, log=log)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._throttle()
        self._last_job_submitted = time.time()
        job_id, warnings = self._sbatch(text)
        for warning in warnings:
            _log.warning("sbatch, job %s: %s", job_id, warning)
        self._keep_or_cancel(job_id, lambda: self._write_parts(job_id, text, parts))
        self.job_class.watcher.note_submission(job_id)
        return job_id, warnings

    def _write_parts(self, job_id: str, text: str, parts: Sequence[_Part]) -> None:
        for part in parts:
            _write(JobPaths(part.step.folder, job_id=job_id).submitted_pickle, part.pickled)
        is_het = parts[0].step.folder != self.folder
        sizes = {part.step.name: part.num_tasks for part in parts} if is_het else None
        _write_job(HetJobPaths(self.folder, job_id), text, sizes)

    @staticmethod
    def _sbatch(text: str) -> tuple[str, tuple[str, ...]]:
        """The id of the job, and sbatch's warnings."""
        try:
            answer: Answer = ask_slurm("sbatch", "--parsable", text=text, deadline_s=_SBATCH_DEADLINE_S)
        except NoSlurmError:
            raise
        except SlurmError as error:
            raise SubmissionRefusedError(str(error)) from None
        job_id = answer.text.strip().partition(";")[0]
        if not job_id.isdecimal():
            raise SubmissionRefusedError(f"sbatch said {answer.text!r} instead of the job's id; see `squeue --me`")
        return job_id, tuple(answer.warnings.splitlines())

    @staticmethod
    def _keep_or_cancel(job_id: str, write: Callable[[], None]) -> None:
        """A job without its files would wait for them in vain."""
        try:
            write()
        except BaseException:
            run_slurm("scancel", job_id)
            raise


def _write_job(paths: HetJobPaths, text: str, components: Mapping[str, int] | None) -> None:
    _write(paths.submission_file, text.encode())
    if components is not None:
        _write(paths.components_file, msgspec.json.encode(components))


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: tasks of the running job look for these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.rename(path)
