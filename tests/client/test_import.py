"""What an import of appliance.client loads: each command and each application pays for it at its start."""

from __future__ import annotations

import subprocess
import sys


def test_a_client_loads_neither_the_configuration_of_a_server_nor_the_table_of_admin_verbs() -> None:
    code = "import sys, appliance.client; print(*(name for name in sys.modules if name.startswith('appliance')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "appliance.client.cluster_client" in loaded
    assert not {"appliance.config", "appliance.wire.native_admin"} & set(loaded)
