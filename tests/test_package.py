import importlib
import subprocess
import sys

import pytest

import attsvm


def test_every_public_name_resolves_and_is_the_one_of_its_room():
    for name in attsvm.__all__:
        assert getattr(attsvm, name) is not None, name
    for name, room in attsvm._HOME.items():
        assert name in attsvm.__all__
        assert getattr(attsvm, name) is getattr(importlib.import_module(f"attsvm.{room}"), name)
    assert set(attsvm.__all__) <= set(dir(attsvm))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = attsvm.nonsense


def test_star_import_works():
    subprocess.run(
        [sys.executable, "-c", "from attsvm import *; assert max_margin and datasets"], check=True
    )
