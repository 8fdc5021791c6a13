"""The package's public names: there, whenever they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oplogue


def test_every_public_name_is_there() -> None:
    scope: dict[str, object] = {}
    exec("from oplogue import *", scope)
    assert set(oplogue.__all__) <= set(scope)
    assert set(oplogue.__all__) <= set(dir(oplogue))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = oplogue.nothing


def test_importing_the_package_imports_the_driver_only_when_a_name_needs_it() -> None:
    code = (
        "import sys, oplogue; print('pymongo' in sys.modules); "
        "print(oplogue.errors.OplogueError is oplogue.OplogueError); "
        "print('pymongo' in sys.modules); oplogue.App; print('pymongo' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["False", "True", "False", "True"], ended.stderr
