"""A checkpoint's model as a file that anyone's programs can load."""

import io
import shutil
import tarfile

import pytest
from django.http import StreamingHttpResponse
from django.test import Client

from dashboard.runs.checkpoints.files import CheckpointStore, Damaged
from dashboard.runs.models import Checkpoint
from dashboard.supervision.checkpoints import ModelArchive
from tests.dashboard.runs.checkpoints.real_model import generate, model_files


def download(client: Client, checkpoint: Checkpoint) -> StreamingHttpResponse:
    run = checkpoint.run
    response = client.get(
        f"/alpha/runs/{run.pk}/checkpoints/{checkpoint.name}/model.tar"
    )
    assert isinstance(response, StreamingHttpResponse), response.status_code
    return response


@pytest.mark.slow
def test_transformers_loads_the_unpacked_model(bob_client, saving, tmp_path):
    files = model_files(tmp_path / "model")
    checkpoint = saving.save(files={**files, "optimizer.safetensors": b"moments"})

    response = download(bob_client, checkpoint)
    data = response.getvalue()

    assert int(response["Content-Length"]) == len(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:  # Python 3.11.2's extractall takes no filter yet
            tar.extract(member, tmp_path / "out", set_attrs=False)
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == f"calm-otter-1-{checkpoint.run_id}-step-1"
    assert {path.name for path in folder.iterdir()} == {
        name.removeprefix("model/") for name in files
    }
    assert generate(folder, "1 + 1 =") == generate(tmp_path / "model", "1 + 1 =")


def test_it_is_sent_in_pieces_and_outlives_a_deletion(saving):
    weights = bytes(range(256)) * 4_096 * 5
    checkpoint = saving.save(files={"model/model.safetensors": weights})
    path = saving.folder / checkpoint.name
    archive = ModelArchive(path, checkpoint, folder="it")

    shutil.rmtree(path)
    pieces = list(archive)
    archive.close()

    assert max(map(len, pieces)) <= 1024 * 1024
    assert sum(map(len, pieces)) == len(archive)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        found = tar.extractfile("it/model.safetensors")
        assert found is not None
        assert found.read() == weights


def test_a_damaged_file_breaks_the_download_off(saving):
    checkpoint = saving.save()
    path = saving.folder / checkpoint.name
    (path / "model/model.safetensors").write_bytes(b"weights at 2")
    archive = ModelArchive(path, checkpoint, folder="it")
    sent: list[bytes] = []

    with pytest.raises(Damaged):
        sent.extend(archive)
    archive.close()

    assert b"weights at 2" not in b"".join(sent)


def test_a_changed_manifest_is_refused_before_the_first_byte(alice_client, saving, run):
    checkpoint = saving.save()
    manifest = saving.folder / checkpoint.name / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")

    response = alice_client.get(
        f"/alpha/runs/{run.pk}/checkpoints/{checkpoint.name}/model.tar", follow=True
    )

    assert "manifest has SHA-256" in response.content.decode()


@pytest.mark.parametrize("way", ["file", "folder"])
def test_a_link_out_of_the_folder_is_not_followed(alice_client, saving, tmp_path, way):
    checkpoint = saving.save()
    found = CheckpointStore(checkpoint.run_id).find(checkpoint.name)
    assert found is not None
    model = found / "model"
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "model.safetensors").write_bytes(b"weights at 1")
    shutil.rmtree(model)
    if way == "folder":
        model.symlink_to(secret)
    else:
        model.mkdir()
        (model / "model.safetensors").symlink_to(secret / "model.safetensors")

    response = alice_client.get(
        f"/alpha/runs/{checkpoint.run_id}/checkpoints/{checkpoint.name}/model.tar",
        follow=True,
    )

    assert "leads outside" in response.content.decode()
