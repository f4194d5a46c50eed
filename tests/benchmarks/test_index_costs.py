"""The index benchmark prints one JSON line with every figure, and reports bad input as an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import index_costs
from tests import forked
from tests.test_architecture import REPOSITORY

# Names of the figures in the JSON line.
FIGURES = {
    *("build_seconds", "peak_mb", "bytes_per_key", "open_seconds", "recall"),
    *("search_p50_ms", "search_p99_ms", "combine_ms", "chosen"),
}


def test_last_line_of_output_is_json_with_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.index_costs", "--keys", "1500", "--dim", "32", "--labels", "350"]
    options = ["--index", "IVF16,SQ8", "--queries", "20", "--folder", tmp_path / "work"]
    result = forked.run([*command, *map(str, options)], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures.keys() >= FIGURES
    assert (figures["keys"], figures["dim"], figures["labels"]) == (1_500, 32, 350)
    assert all(figures[name] > 0 for name in FIGURES - {"chosen"})
    assert 0.9 < figures["recall"] <= 1
    assert figures["search_p50_ms"] <= figures["search_p99_ms"]
    assert figures["pairs"] > 1_150 * 10
    assert set(figures["chosen"]) == {"instances", "labels"}
    assert figures["chosen"]["labels"].startswith("IVF16,SQ8, effort ")
    files = [path.stat().st_size for path in (tmp_path / "work" / "bundle").glob("*_keys.faiss")]
    assert figures["index_mb"] == round(sum(files) / 1e6, 1)
    assert figures["bytes_per_key"] == round(sum(files) / 1_500, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "100"], "--labels 100: expected fewer than the 100 keys"),
        (["--labels", "50", "--index", "nonsense"], "--index 'nonsense': expected auto, flat"),
    ],
)
def test_bad_flag_value_is_reported_in_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        index_costs.main(["--keys", "100", "--dim", "32", "--folder", str(tmp_path / "work"), *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
