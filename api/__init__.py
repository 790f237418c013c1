"""What Meshwright does, for Python: the functions that the command line calls, too.

`import meshwright` gives the names of `EXPORTS` when they are asked for; torch is imported by the
first that needs it. Bad input raises MeshwrightError, in one line.
"""

# Name of the package's root -> the module that holds it.
EXPORTS = {
    "Cluster": "api.demands",
    "Job": "api.demands",
    "MeshwrightError": "ir.errors",
    "RunFailedError": "api.errors",
    "load_model": "api.modules",
    "ModelSource": "models.source",
    "trace": "api.planning",
    "Traced": "ir.traced",
    "plan": "api.planning",
    "Plan": "api.plans",
    "what_if": "api.what_if",
    "priced": "api.what_if",
    "probe": "api.probing",
    "compile": "api.programs",
    "Program": "api.programs",
    "RunOptions": "runtime.training.options",
    "run": "api.runs",
    "resume": "api.runs",
    "dry_run": "api.dry",
    "DryRun": "runtime.dry.found",
    "train": "api.jobs",
    "Trainer": "api.runs",
    "RouterLoad": "models.router_load",
    "balance_loss": "models.router_load",
    "RunResult": "api.results",
    "Event": "runtime.training.callbacks",
    "EvaluationResult": "api.results",
}
