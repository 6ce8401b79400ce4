"""What a server says at `/metrics`, read as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Scraped:
    def __init__(self, text: bytes) -> None:
        self.families = list(text_string_to_metric_families(text.decode()))
        self.samples: list[Sample] = [sample for family in self.families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def label_names(self, name: str) -> set[str]:
        return {label for sample in self.samples if sample.name == name for label in sample.labels}

    def values(self, name: str, **labels: object) -> list[float]:
        """Of every sample that has these labels, whatever others it has."""
        wanted = {label: str(value) for label, value in labels.items()}
        return [
            each.value for each in self.samples if each.name == name and wanted.items() <= each.labels.items()
        ]

    def value(self, name: str, **labels: object) -> float:
        """Of the one sample that has these labels."""
        (value,) = self.values(name, **labels)
        return value
