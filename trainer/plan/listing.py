"""The text of a plan, for `recollect plan`."""

from __future__ import annotations

from recollect.service.memory_use import free_bytes
from recollect.trainer.plan.plan import Plan
from recollect.trainer.recipe import Recipe

# Parts below this share of the memory are one line.
_LEAST_SHARE = 0.001


def listing(plan: Plan) -> list[str]:
    """The lines of a plan: sizes, memory by part, and time by activity."""
    recipe, sizes, gpu = plan.recipe, plan.sizes, plan.device == "cuda"
    lines = [
        f"{sizes.instances:,} instances, {sizes.labels:,} labels, {sizes.pairs:,} pairs of an instance and a label",
        f"{recipe.method}, {recipe.train}: {_steps(recipe)} of {recipe.batch_size:,} queries, "
        f"{_count(sizes.ranks, 'process')} {'with a GPU each' if gpu else 'on the CPU'}",
        "",
        f"memory of one process    {_size(plan.rank_bytes)}",
        f"memory of all processes  {_size(plan.host_bytes)}; this machine has {_size(free_bytes())} free",
    ]
    if gpu:
        lines.append(f"memory of one GPU        {_size(plan.gpu_bytes)}")
    lines += ["", "memory of one process by part", *_rows([(name, _size(size)) for name, size in _parts(plan)])]
    total = sum(plan.hours.values())
    lines += ["", f"time  {_time(total)}, if every process is as fast as one process on this machine"]
    return lines + _rows([(name, _time(hours)) for name, hours in plan.hours.items()])


def _parts(plan: Plan) -> list[tuple[str, int]]:
    """The parts of the memory of a process, largest first. Small parts are one line."""
    found = [("program, encoder, micro-batch (measured)", plan.fixed_bytes)]
    found += [(_name(part.name, part.phase), part.size_bytes) for part in plan.parts]
    least = _LEAST_SHARE * plan.rank_bytes
    shown = sorted((row for row in found if row[1] >= least), key=lambda row: -row[1])
    return shown + [("other parts together", sum(size for _, size in found if size < least))]


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:{width}}  {value:>10}" for name, value in rows]


def _steps(recipe: Recipe) -> str:
    if recipe.max_seconds:
        return f"steps for {_time(recipe.max_seconds / 3_600)}"
    return f"{_count(recipe.steps, 'step')} ({_count(recipe.epochs, 'epoch')})"


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def _name(name: str, phase: str) -> str:
    when = {"always": "", "step": ", in a step", "keys": ", in a validation or mining"}
    return name + when[phase]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _time(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{60 * hours:,.1f} min" if hours >= 1 / 60 else f"{3_600 * hours:,.1f} s"
