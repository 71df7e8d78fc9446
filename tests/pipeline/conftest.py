import json

import pytest

from attsvm.cli import main
from attsvm.report import figures

SMALL = ["fit", "digits", "--steps", "1500", "--records", "25", "--quiet"]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, quick_pictures):
    """A small finished fit of the digits with all figures: its folder, its run.json and its
    command.
    """
    folder = tmp_path_factory.mktemp("fit") / "digits"
    command = [*SMALL, "--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FIGURES", quick_pictures.figures)
        assert main(command) == 0
    return folder, json.loads((folder / "run.json").read_text(encoding="utf-8")), command
