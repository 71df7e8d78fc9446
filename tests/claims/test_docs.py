"""The example on the page about claims runs as written, and is short."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"


def test_the_readers_own_claim_runs_as_written(capsys):
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the tests")
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    statements = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(statements) - len(imports) <= 12
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("mine holds: measured ")
