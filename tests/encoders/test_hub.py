from curate import encoders


def test_cached_weights_have_the_digest_of_their_blob(tmp_path, monkeypatch):
    """In the Hugging Face cache, a snapshot links to a blob named by the hub's digest."""
    repo = tmp_path / "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    blob, snapshot = "ab" * 32, repo / "snapshots" / "c0ffee"
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "blobs" / blob).write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to(repo / "blobs" / blob)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert encoders.identity("timm:vit_tiny_patch16_224")["weights"] == blob
    assert encoders.problems("timm:vit_tiny_patch16_224") == []
