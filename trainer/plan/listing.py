"""The text of a plan, for `recollect plan`."""

from __future__ import annotations

from trainer.plan.plan import Plan
from trainer.training.memory_check import free_bytes

# Hours below which a plan prints minutes.
_FEW_HOURS = 1.0


def listing(plan: Plan) -> list[str]:
    """The lines of a plan: sizes, memory by part, and time by activity."""
    recipe, sizes, gpu = plan.recipe, plan.sizes, plan.device == "cuda"
    lines = [
        f"{sizes.instances:,} instances, {sizes.labels:,} labels, {sizes.pairs:,} pairs",
        f"{recipe.method}, {recipe.train}: {recipe.steps:,} steps of {recipe.batch_size:,} queries "
        f"({recipe.epochs:,} epochs), {sizes.ranks} {'GPUs' if gpu else 'processes on CPU cores'}",
        "",
        f"memory of a rank  {_size(plan.rank_bytes)}",
        f"memory of a host  {_size(plan.host_bytes)}, of which {_size(free_bytes())} are free on this machine",
    ]
    if gpu:
        lines.append(f"memory of a GPU   {_size(plan.gpu_bytes)}")
    shown = [("program, encoder, micro-batch (measured)", plan.fixed_bytes)]
    shown += [(_name(part.name, part.phase), part.size_bytes) for part in plan.parts]
    lines += ["", "the memory of a rank by part:"]
    lines += [f"  {name:58}{_size(size):>10}" for name, size in sorted(shown, key=lambda row: -row[1])]
    total = sum(plan.hours.values())
    lines += ["", f"time  {_time(total)}, if every rank is as fast as one process on this machine"]
    return lines + [f"  {name:58}{_time(hours):>10}" for name, hours in plan.hours.items()]


def _name(name: str, phase: str) -> str:
    when = {"always": "", "step": ", in a step", "keys": ", in a validation or mining"}
    return name + when[phase]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _time(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= _FEW_HOURS else f"{60 * hours:,.1f} min"
