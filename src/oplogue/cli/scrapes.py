"""The metrics of worker processes under one address: one text of what each of them says.

In cluster mode each process answers for all instances, so one answer is all there is to say. In local mode each
answers for itself: where there are several, a label ``process`` keeps their series apart. Added up they would fall
when one of them starts anew, and a counter that falls makes rates leap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

from oplogue.cli.link import Message
from oplogue.cli.probes import Answer
from oplogue.model.metrics import CONTENT_TYPE

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")


def scraped(told: Mapping[str, Message]) -> Answer:
    """What Prometheus gets, from what each process has said, by its number."""
    texts = {number: message["text"] for number, message in told.items() if "text" in message}
    if not texts:
        problems = {message["problem"] for message in told.values()} or {"no process has answered"}
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{'; '.join(sorted(problems))}\n".encode())
    of_all = [number for number in texts if told[number]["of_all"]]
    text = texts[of_all[0]] if of_all else joined(texts)
    return Answer(HTTPStatus.OK, text.encode(), CONTENT_TYPE)


def joined(texts: Mapping[str, str]) -> str:
    """Several expositions as one: each metric once, its samples told apart by their process.

    >>> print(joined({"1": "# TYPE up gauge\\nup 1\\n", "2": "# TYPE up gauge\\nup 0\\n"}), end="")
    # TYPE up gauge
    up{process="1"} 1
    up{process="2"} 0
    """
    families: dict[str, list[str]] = {}
    for number, text in texts.items():
        head: list[str] = []
        family: list[str] = []
        for line in text.strip("\n").split("\n"):
            if line.startswith("#"):
                head.append(line)
                continue
            if head:
                family, head = families.setdefault("\n".join(head), []), []
            family.append(_labelled(line, number) if number else line)
    return "".join(f"{line}\n" for head, samples in families.items() for line in (head, *samples))


def _labelled(sample: str, process: str) -> str:
    found = _SAMPLE.fullmatch(sample)
    assert found is not None, sample
    name, labels, value = found.groups()
    return f'{name}{{process="{process}"{"," + labels if labels else ""}}} {value}'
