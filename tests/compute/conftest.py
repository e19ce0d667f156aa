from __future__ import annotations

import pytest
import torch


@pytest.fixture
def onednn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch oneDNN on. torch switches it off for the process when a product in bf16 fails."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
