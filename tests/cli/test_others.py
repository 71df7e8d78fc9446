"""Commands of other packages: found by their entry points, and not looked for by our own."""

import sys
from pathlib import Path

import pytest

from attsvm.base.errors import InputError
from attsvm.cli import main, parser

MODULE = """
from attsvm.cli.output import show

def add_parser(commands):
    parser = commands.add_parser("greet", help="say good day")
    parser.set_defaults(run=lambda options: show("good day") or 0)
    commands.add_parser("wait").set_defaults(run=wait)

def wait(options):
    raise KeyboardInterrupt

def names():
    return {"greetings": {"day": "a good one"}}
"""


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    """A package that brings a command."""
    folder = tmp_path / "attsvm_greeting-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\nhello = hello:main\n\n[attsvm.commands]\ngreet = greeting_of_a_test\n"
        "\n[others]\nworse = no_such_module\n"
    )
    (tmp_path / "greeting_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_command_of_another_package_runs_and_is_listed(greeting, capsys):
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "good day\n"
    assert main(["--help"]) == 0
    assert "say good day" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "greetings:\n  day  a good one" in capsys.readouterr().out


def test_a_program_that_calls_a_command_has_the_interrupts_of_python(greeting, capsys):
    assert main(["wait"]) == 130
    assert capsys.readouterr().err == "attsvm: interrupted\n"


def test_our_own_commands_do_not_look_for_others(monkeypatch):
    monkeypatch.setattr(sys, "path", None)
    parser("fit")


def test_without_the_package_there_is_no_such_command(monkeypatch):
    """Where its metadata is not on the path."""
    without = [folder for folder in sys.path if not any(Path(folder).glob("attsvm*.dist-info"))]
    monkeypatch.setattr(sys, "path", without)
    with pytest.raises(InputError, match="there is no command 'reproduce'"):
        parser("reproduce").parse_args(["reproduce"])
