from dashboard.datasets.models.analyses import (
    Analysis,
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
    "Analysis",
    "Dataset",
    "DatasetRow",
    "DatasetVersion",
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
