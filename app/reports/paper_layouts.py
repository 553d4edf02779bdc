"""The tables of both papers as layouts: which run belongs in which cell, and what the paper has there.

A cell says by overrides which runs are meant. The settings that the paper states are those of the preset with
``variant=paper``, so that they stand in conf/ and nowhere else: a run agrees with the paper where its configuration
does, and only then does the paper's number stand beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .arms import Spread

GROUPS = {"method": "method.name", "augmentation": "augmentation.kind", "model": "model.kind", "data": "data.name"}


@dataclass(frozen=True)
class Column:
    """figure: a key of the summary; 'domain:NAME' that domain's accuracy; 'seconds' the mean seconds a round."""

    label: str
    figure: str = "final"
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """numbers: the paper's, one a column, in the paper's unit; None where it has none. figure replaces the columns'."""

    label: str
    overrides: tuple[str, ...]
    numbers: tuple[float | Spread | None, ...]
    figure: str | None = None


@dataclass(frozen=True)
class Layout:
    """overrides hold for all cells. percent: whether figures are shares, shown in per cent (else seconds, counts)."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    overrides: tuple[str, ...] = ()
    percent: bool = True
    note: str = ""


@dataclass(frozen=True)
class Spot:
    """One cell: where it is, what the paper has there, and by which values of which keys its runs are known."""

    row: Row
    column: Column
    figure: str
    number: float | Spread | None
    overrides: tuple[str, ...]
    known_by: dict[str, str] = field(hash=False)


def spots(layout: Layout) -> list[Spot]:
    """The cells of a layout, row by row."""
    made = []
    for row in layout.rows:
        for column, number in zip(layout.columns, row.numbers, strict=True):
            words = (*layout.overrides, *column.overrides, *row.overrides)
            known_by: dict[str, str] = {}
            for word in words:
                key, _, value = word.partition("=")
                known_by[GROUPS.get(key, key)] = value
            made.append(Spot(row, column, row.figure or column.figure, number, words, known_by))
    return made


NONE, GGEUR = ("augmentation=none",), ("augmentation=ggeur",)
PEERS = {"FedMix": ("augmentation=fedmix",), "FedFA": ("augmentation=fedfa",)}


def _skews(experiment: str, title: str, betas: Sequence[float]) -> tuple[Column, ...]:
    """A column for each concentration."""
    clients = "federation.clients=10"
    return tuple(
        Column(f"{title} β={beta:g}", "final", (f"experiment={experiment}", clients, f"federation.beta={beta:g}"))
        for beta in betas
    )


def _fedavg(numbers: Sequence[float | None], gained: Sequence[float | None]) -> tuple[Row, Row]:
    return (
        Row("FedAvg", ("method=fedavg", *NONE), tuple(numbers)),
        Row("FedAvg + GGEUR", ("method=fedavg", *GGEUR), tuple(gained)),
    )


def _domains(**names: str) -> tuple[Column, ...]:
    return tuple(Column(label, f"domain:{name}") for label, name in names.items())


OVER_DOMAINS = (Column("AVG", "mean_over_domains"), Column("STD", "std_over_domains"))
NAMED_ONLY = (
    "In the authors' published code FedDyn and SCAFFOLD keep their states at zero, and MOON has no negative: the "
    "paper's rows of these names may not be these methods (docs/reproduce.md)."
)
METHODS = ("FedAvg", "SCAFFOLD", "MOON", "FedDyn", "FedOPT", "FedProto", "FedNTD")


def _pairs(lines: dict[str, Sequence[float | None]], columns: int) -> tuple[Row, ...]:
    """Two rows a method, plain and with GGEUR; where the paper has none of the latter, ours stand alone."""
    rows = []
    for method in METHODS:
        chosen = f"method={method.lower()}"
        nothing = (None,) * columns
        rows.append(Row(method, (chosen, *NONE), tuple(lines.get(method, nothing))))
        rows.append(Row(f"{method} + GGEUR", (chosen, *GGEUR), tuple(lines.get(f"{method}+", nothing))))
    return tuple(rows)


def _f1(mean: float, std: float) -> Spread:
    return Spread(mean, std, 10)


# fmt: off
LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "ggeur-1", "GGEUR, Table 1: label skew, accuracy (%)",
        (*_skews("cifar100", "CIFAR-100", (0.5, 0.3, 0.1)), *_skews("tiny_imagenet", "Tiny-ImageNet", (0.5, 0.3, 0.1))),
        (
            Row("zero-shot CLIP", ("method=zeroshot", *NONE), (64.87, 64.87, 64.87, 63.67, 63.67, 63.67)),
            Row("FedCLIP", ("method=fedclip", *NONE), (72.03, 71.20, 70.64, 70.41, 70.37, 69.50)),
            Row("FedMix", ("method=fedavg", *PEERS["FedMix"]), (81.31, 79.62, 73.85, 70.89, 68.57, 63.43)),
            Row("FedFA", ("method=fedavg", *PEERS["FedFA"]), (81.98, 79.31, 74.68, 70.41, 70.68, 64.62)),
            *_fedavg((81.41, 77.68, 68.22, 70.08, 67.65, 60.10), (83.31, 81.65, 77.70, 73.89, 72.19, 66.86)),
        ),
    ),
    Layout(
        "ggeur-2", "GGEUR, Table 2: severe label skew, accuracy (%)",
        (*_skews("cifar10", "CIFAR-10", (0.01, 0.03, 0.05, 0.07, 0.09)),
         *_skews("cifar100", "CIFAR-100", (0.01, 0.03, 0.05, 0.07, 0.09))),
        _fedavg((90.87, 90.13, 91.96, 92.05, 91.82, 58.71, 60.77, 62.32, 61.69, 66.51),
                (94.39, 94.25, 95.07, 95.21, 95.38, 75.72, 75.40, 75.96, 76.72, 78.00)),
    ),
    Layout(
        "ggeur-3", "GGEUR, Table 3: severe label skew, accuracy (%)",
        _skews("tiny_imagenet", "Tiny-ImageNet", (0.01, 0.03, 0.05, 0.07, 0.09)),
        _fedavg((53.03, 54.57, 58.91, 58.77, 59.13), (64.27, 65.79, 66.49, 66.34, 66.85)),
    ),
    Layout(
        "ggeur-4", "GGEUR, Table 4: Digits, accuracy (%)",
        (*_domains(MNIST="mnist", USPS="usps", SVHN="svhn", SYN="syn"), *OVER_DOMAINS),
        (
            Row("FedMix", ("method=fedavg", *PEERS["FedMix"]), (95.03, 90.25, 57.50, 72.60, 78.85, 14.89)),
            Row("FedFA", ("method=fedavg", *PEERS["FedFA"]), (96.68, 92.97, 57.87, 75.53, 80.76, 15.44)),
            Row("FedAvg + GGEUR (step 1)", ("method=fedavg", *GGEUR, "augmentation.step2=false"),
                (96.02, 93.02, 58.55, 73.13, 80.18, 15.28)),
            Row("MOON + GGEUR (step 1)", ("method=moon", *GGEUR, "augmentation.step2=false"),
                (84.64, 81.96, 43.04, 60.35, 67.50, 16.97)),
            *(Row(row.label, (*row.overrides, "augmentation.step2=true"), row.numbers) for row in _pairs({
                "FedAvg": (95.12, 89.74, 56.36, 65.17, 76.60, 16.25),
                "FedAvg+": (97.05, 94.12, 63.54, 74.73, 82.36, 13.84),
                "SCAFFOLD": (94.62, 90.08, 54.33, 68.71, 76.93, 16.31),
                "SCAFFOLD+": (95.91, 92.08, 63.25, 71.54, 80.70, 13.69),
                "MOON": (75.64, 73.09, 38.83, 52.74, 60.07, 15.14),
                "MOON+": (95.16, 91.13, 55.23, 71.00, 78.13, 16.08),
                "FedDyn": (95.46, 92.13, 58.89, 70.30, 79.19, 15.19),
                "FedDyn+": (97.07, 94.02, 63.34, 74.83, 82.31, 13.88),
                "FedOPT": (94.57, 88.79, 58.65, 66.47, 77.12, 14.96),
                "FedOPT+": (96.43, 93.47, 62.35, 70.75, 80.75, 14.54),
                "FedProto": (94.86, 92.63, 54.29, 65.52, 76.83, 17.40),
                "FedProto+": (97.19, 94.12, 63.70, 73.83, 82.21, 13.96),
                "FedNTD": (95.82, 91.43, 58.26, 69.95, 78.86, 15.41),
                "FedNTD+": (97.08, 94.32, 63.57, 73.53, 82.13, 14.06),
            }, 6)),
        ),
        ("experiment=digits",),
        note=NAMED_ONLY,
    ),
    Layout(
        "ggeur-5", "GGEUR, Table 5: Office-Caltech, accuracy (%)",
        (*_domains(Amazon="amazon", Caltech="caltech", DSLR="dslr", Webcam="webcam"),
         Column("AVG", "mean_over_domains"), Column("STD", "sample_std_over_domains")),
        _pairs({method: (None, None, None, None, average, None) for method, average in
                zip(METHODS, (98.75, 94.54, 98.70, 98.84, 98.90, 98.75, 98.51), strict=True)}, 6),
        ("experiment=office_caltech",),
        note=f"STD over domains has divisor n - 1 here, as in this table of the paper alone. {NAMED_ONLY}",
    ),
    Layout(
        "ggeur-6", "GGEUR, Table 6: PACS, accuracy (%)",
        (*_domains(Photo="photo", Art="art_painting", Cartoon="cartoon", Sketch="sketch"), *OVER_DOMAINS),
        _pairs({method: (None, None, None, None, average, None) for method, average in
                zip(METHODS, (97.60, 85.50, 97.99, 97.58, 97.60, 97.71, 97.38), strict=True)}, 6),
        ("experiment=pacs",),
        note=NAMED_ONLY,
    ),
    Layout(
        "ggeur-7", "GGEUR, Table 7: Office-Home-LDS, β=0.1, accuracy (%)",
        (*_domains(**{name: name for name in ("Art", "Clipart", "Product", "Real World")}), *OVER_DOMAINS),
        _pairs({
            "FedAvg": (None, None, None, None, 70.14, 8.89), "FedAvg+": (None, None, None, None, 83.99, 5.36),
            "SCAFFOLD": (None, None, None, None, 74.82, None), "SCAFFOLD+": (None, None, None, None, 83.96, None),
            "MOON": (None, None, None, None, 76.83, None), "MOON+": (None, None, None, None, 78.08, None),
            "FedDyn": (None, None, None, None, 65.99, None), "FedDyn+": (None, None, None, None, 84.09, None),
            "FedOPT": (None, None, None, None, 65.59, None), "FedOPT+": (None, None, None, None, 84.20, None),
            "FedProto": (None, None, None, None, 69.40, None), "FedProto+": (None, None, None, None, 83.35, None),
            "FedNTD": (None, None, None, None, 75.46, None), "FedNTD+": (None, None, None, None, 82.46, None),
        }, 6),
        ("experiment=office_home_lds", "federation.beta=0.1"),
        note=NAMED_ONLY,
    ),
    Layout(
        "ggeur-10", "GGEUR, Table 10: CIFAR-10, β=0.1, by number of clients, accuracy (%)",
        tuple(Column(f"K={k}", "final", (f"federation.clients={k}",)) for k in (100, 300, 500)),
        _fedavg((87.89, 84.69, 82.05), (93.55, 92.17, 90.43)),
        ("experiment=cifar10", "federation.beta=0.1"),
    ),
    Layout(
        "ggeur-11", "GGEUR, Table 11: Digits, seconds a round",
        (Column("plain", "seconds", NONE), Column("+ GGEUR", "seconds", GGEUR)),
        (
            Row("FedAvg", ("method=fedavg",), (28.2, 31.7)),
            Row("SCAFFOLD", ("method=scaffold",), (54.5, 59.1)),
            Row("MOON", ("method=moon",), (32.3, 35.6)),
        ),
        ("experiment=digits",),
        percent=False,
        note="Seconds depend on the machine: compare within a column of one machine only.",
    ),
    Layout(
        "fedspdnet-1", "FedSPDnet, Table I: test F1 (%)",
        tuple(
            Column(f"{data} {model}", "f1_macro", (f"experiment=fedspdnet_{data.lower()}", *words))
            for data in ("Weibo2014", "PhysionetMI")
            for model, words in (
                ("EEGNet", ("model=eegnet", "method=fedavg")), ("SPDnet", ("model=spdnet", "method=projavg")),
            )
        ),
        (
            Row("centralised", ("method=centralised",),
                (_f1(50.7, 1.5), _f1(51.7, 0.8), _f1(50.8, 0.7), _f1(43.1, 0.5))),
            Row("federated, all", ("federation.participation=all",),
                (_f1(39.9, 2.4), _f1(43.3, 1.0), _f1(38.3, 1.8), _f1(39.5, 0.6))),
            Row("federated, half", ("federation.participation=0.5",),
                (_f1(36.4, 4.1), _f1(41.2, 0.8), _f1(38.0, 2.7), _f1(39.5, 0.9))),
        ),
    ),
)
# fmt: on
