"""The page about bags: its blocks run as they are written, and print what it says."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "bags.md").read_text(encoding="utf-8")


def test_the_blocks_run_in_order_and_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out
    said = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert said is not None
    assert said.group(1) in printed
    assert '<h2 id="bags">' in (tmp_path / "bags.html").read_text(encoding="utf-8")
