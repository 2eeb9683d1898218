from dashboard.datasets.models.findings import (
    Finding,
    TokenLengths,
    VersionDifference,
    VersionLeak,
    VersionSplit,
    VersionStatistics,
)
from dashboard.datasets.models.imports import ImportJob, Upload, place_of
from dashboard.datasets.models.versions import (
    Dataset,
    DatasetRow,
    DatasetVersion,
    RowOrder,
)

__all__ = [
    "Dataset",
    "DatasetRow",
    "DatasetVersion",
    "Finding",
    "ImportJob",
    "RowOrder",
    "TokenLengths",
    "Upload",
    "VersionDifference",
    "VersionLeak",
    "VersionSplit",
    "VersionStatistics",
    "place_of",
]
