"""What Temporal's sandbox need not take in anew for each run of a workflow: our own modules.

They keep no state of workflows, and what does I/O refuses to in workflow code.
"""

from dataclasses import replace

from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

OURS = "dibs"


def passing_ours(runner: WorkflowRunner | None) -> WorkflowRunner:
    """The runner, with our modules passed through if it has a sandbox."""
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    if OURS in runner.restrictions.passthrough_modules:
        return runner
    return replace(runner, restrictions=runner.restrictions.with_passthrough_modules(OURS))
