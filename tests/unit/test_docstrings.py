"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import oplogue

MODULES = [
    "oplogue",
    *(
        module.name
        for module in pkgutil.walk_packages(oplogue.__path__, "oplogue.")
        if not module.name.endswith(".__main__")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
