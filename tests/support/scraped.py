"""What an app exports, read back with Prometheus's own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from oplogue import App


class Scraped:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            self.samples += [(sample.name, sample.labels, sample.value) for sample in family.samples]

    def all(self, name: str, **labels: str) -> list[float]:
        """The values of every series of that name that has these labels; the prefix may be left out."""
        full = f"reactive_tasks_{name}"
        return [
            value
            for found, theirs, value in self.samples
            if found == full and labels.items() <= theirs.items()
        ]

    def one(self, name: str, **labels: str) -> float:
        """The value of the only such series."""
        values = self.all(name, **labels)
        assert len(values) == 1, (name, labels, values)
        return values[0]

    def sum(self, name: str, **labels: str) -> float:
        """All such series together."""
        return sum(self.all(name, **labels))


async def scrape(app: App) -> Scraped:
    """Ask the app for its metrics."""
    text = await app.get_prometheus_metrics()
    assert text is not None
    return Scraped(text.decode())
