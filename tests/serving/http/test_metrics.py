"""What the server counts needs a package of an extra."""

import sys

import pytest

from metavib.core.errors import UserError
from metavib.serving.http.metrics import ServerMetrics


def test_without_the_extra_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"the server needs prometheus_client; run: pip install .*serve"):
        ServerMetrics(int, int, int)
