"""Included at /<team>/datasets/."""

from __future__ import annotations

from django.urls import path

from dashboard.datasets.views.changes import dataset_changes
from dashboard.datasets.views.choice import dataset_choice
from dashboard.datasets.views.detail import dataset
from dashboard.datasets.views.download import dataset_download
from dashboard.datasets.views.generate import dataset_generate
from dashboard.datasets.views.imports import dataset_import
from dashboard.datasets.views.leaks import dataset_leaks
from dashboard.datasets.views.list import datasets
from dashboard.datasets.views.mapping import dataset_map
from dashboard.datasets.views.mapping_prompt import dataset_map_prompt
from dashboard.datasets.views.prompt import dataset_prompt
from dashboard.datasets.views.save import dataset_save
from dashboard.datasets.views.split import dataset_split
from dashboard.datasets.views.statistics import dataset_statistics
from dashboard.datasets.views.transfer import dataset_upload_parts, dataset_uploads
from dashboard.datasets.views.trash import dataset_trash, datasets_trash
from dashboard.datasets.views.upload import dataset_upload

urlpatterns = [
    path("", datasets, name="datasets"),
    path("upload", dataset_upload, name="dataset_upload"),
    path("uploads", dataset_uploads, name="dataset_uploads"),
    path(
        "uploads/<int:upload_id>/parts",
        dataset_upload_parts,
        name="dataset_upload_parts",
    ),
    path("uploads/<int:upload_id>", dataset_map, name="dataset_map"),
    path("uploads/<int:upload_id>/choice", dataset_choice, name="dataset_choice"),
    path(
        "uploads/<int:upload_id>/prompt", dataset_map_prompt, name="dataset_map_prompt"
    ),
    path("imports/<int:job_id>", dataset_import, name="dataset_import"),
    path("generate", dataset_generate, name="dataset_generate"),
    path("<int:dataset_id>/", dataset, name="dataset"),
    path("<int:dataset_id>/changes", dataset_changes, name="dataset_changes"),
    path("<int:dataset_id>/prompt", dataset_prompt, name="dataset_prompt"),
    path("<int:dataset_id>/statistics", dataset_statistics, name="dataset_statistics"),
    path("trash", datasets_trash, name="datasets_trash"),
    path("<int:dataset_id>/trash", dataset_trash, name="dataset_trash"),
    path("<int:dataset_id>/split", dataset_split, name="dataset_split"),
    path("<int:dataset_id>/leaks", dataset_leaks, name="dataset_leaks"),
    path("<int:dataset_id>/save", dataset_save, name="dataset_save"),
    path("<int:dataset_id>/download", dataset_download, name="dataset_download"),
]
