"""Plain values that users give as options, checked where they come in."""

from __future__ import annotations

from oplogue.errors import ConfigurationError


def whole(value: object, *, option: str, minimum: int, maximum: int | None = None) -> int:
    """A whole number within its bounds.

    >>> whole(0, option="limit", minimum=1, maximum=500)
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: limit=0: out of range; expected a whole number, at least 1 and at most 500
    """
    expected = f"a whole number, at least {minimum}" + ("" if maximum is None else f" and at most {maximum}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError("not a whole number", option=option, value=value, expected=expected)
    if value < minimum or (maximum is not None and value > maximum):
        raise ConfigurationError("out of range", option=option, value=value, expected=expected)
    return value


def text(value: object, *, option: str, expected: str) -> str:
    """A text that is not empty.

    >>> text("", option="key", expected="a name such as 'account-7'")
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: key='': not a text; expected a name such as 'account-7'
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError("not a text", option=option, value=value, expected=expected)
    return value
