"""An experiment of the reader's own: the page's example is a file that `attsvm reproduce` runs."""

import json
import re
from pathlib import Path

import pytest

from attsvm.base.errors import InputError
from attsvm.cli import main
from attsvm_papers.kit import experiment

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"


@pytest.fixture
def figure(tmp_path):
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the tests")
    *_, code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(code.splitlines()) <= 60
    path = tmp_path / "angle.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_the_example_is_run_judged_and_drawn(figure, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", str(figure), "--quick", "--jobs", "1", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "angle  Training meets its own max-margin direction" in told
    assert "holds          A1" in told
    run = json.loads((out / "angle" / "run.json").read_text(encoding="utf-8"))
    assert (run["paper_title"], run["trials"]) == ("Your own", 10)
    assert (out / "angle" / "figures" / "gaps.png").exists()
    assert 'href="angle/report.html"' in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_processes_read_the_file_anew(figure, tmp_path):
    words = ["--quick", "--seeds", "60", "--jobs", "2", "--out", str(tmp_path / "out"), "--json"]
    assert main(["reproduce", str(figure), *words]) == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1 /", "cannot be run: SyntaxError"),
        ("raise ValueError('no')", "cannot be run: ValueError: no"),
        ('"""Empty."""', "computes nothing; decorate a function `run`"),
    ],
)
def test_a_file_that_is_no_figure_is_told(code, told, tmp_path):
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(told)):
        experiment(str(tmp_path / "mine.py"))
    with pytest.raises(InputError, match=r"there is no file .*other\.py"):
        experiment(str(tmp_path / "other.py"))
